#pragma once

#include <cstdint>

/// What the CPU flash attention's driver and its per-ISA kernels say to each other: plain structs, no inline code, so
/// that files compiled for different instruction sets share nothing that the linker could mix up.
///
/// Rows are fp32, bf16 or fp16 with head_dim contiguous; strides are in elements. Scratch is 64-byte aligned fp32.
namespace warpmeter::attention::flash_detail {

enum class Element : std::int32_t { fp32, bf16, fp16 };

/// Query rows that one forward block, and one block of the dQ pass, takes at most.
inline constexpr std::int64_t kQueryBlock = 128;
/// Keys that are scored at once.
inline constexpr std::int64_t kKeyBlock = 128;
/// Query rows that a key block of the backward meets at once.
inline constexpr std::int64_t kBackwardQueryBlock = 64;

struct Rows {
  const void* data = nullptr;
  std::int64_t stride = 0;
};
struct MutableRows {
  void* data = nullptr;
  std::int64_t stride = 0;
};

/// What every block of a head shares.
struct Shape {
  std::int64_t seq_len = 0;
  std::int64_t kv_len = 0;
  std::int64_t head_dim = 0;
  bool causal = false;
  Element element = Element::fp32;
  float scale = 0;  ///< of the scores
};

/// O and LSE of query rows [first, first + rows) of one head; `rows` <= kQueryBlock. The operands start at row 0.
struct ForwardBlock {
  Shape shape;
  Rows q, k, v;
  MutableRows o;
  float* lse = nullptr;
  float* lse_rest = nullptr;  ///< what rounding LSE to fp32 left behind, for the backward; null: not wanted
  std::int64_t first = 0;
  std::int64_t rows = 0;
  float* scratch = nullptr;
};

/// For query rows [first, first + rows) of one head: delta = rowsum(O * dO), and row_lse = LSE, but +inf
/// for a query that sees nothing (its P is then 0). row_rest = -log2(e) * lse_rest: P is made as
/// 2^((S - row_lse) * log2(e) + row_rest), for an LSE of 1e4 rounded to fp32 alone is good to 3 digits.
struct DeltaBlock {
  Shape shape;
  Rows o, d_o;
  const float* lse = nullptr;
  const float* lse_rest = nullptr;  ///< null: none
  float* delta = nullptr;
  float* row_lse = nullptr;
  float* row_rest = nullptr;
  std::int64_t first = 0;
  std::int64_t rows = 0;
};

/// dQ of query rows [first, first + rows) of one head, P recomputed over key blocks (the two-pass backward).
struct QueryGradientBlock {
  Shape shape;
  Rows q, k, v, d_o;
  const float* delta = nullptr;
  const float* row_lse = nullptr;
  const float* row_rest = nullptr;
  MutableRows dq;
  std::int64_t first = 0;
  std::int64_t rows = 0;
  float* scratch = nullptr;
};

/// One query head as a key block of the backward meets it.
struct BackwardHead {
  Rows q, d_o;
  const float* delta = nullptr;
  const float* row_lse = nullptr;
  const float* row_rest = nullptr;
  MutableRows dq;                ///< of the problem's type
  float* dq_sum = nullptr;       ///< fp32 rows of head_dim where dq is 16-bit, else null: the sum is kept in dq itself
  std::int32_t* turn = nullptr;  ///< one per block of kBackwardQueryBlock queries: key blocks added so far
};

/// dK and dV of keys [first, first + keys) of one key/value head, summed over the query heads of its group, and
/// (`heads[].turn` set) the block's share of dQ.
///
/// Shares are added in the order of key blocks: a block waits for turn == its own index, adds, and lets the next one
/// go. So dQ has the same bits for any number of threads, without atomics on values and without partial sums. Blocks
/// must be started in increasing order of keys.
struct KeyBlock {
  Shape shape;
  Rows k, v;
  MutableRows dk, dv;
  std::int64_t first = 0;
  std::int64_t keys = 0;
  std::int64_t key_block = 0;  ///< the size of full blocks
  const BackwardHead* heads = nullptr;
  std::int64_t num_heads = 0;
  float* scratch = nullptr;
};

/// The kernels of one instruction set for one element type.
struct Kernels {
  const char* isa;
  std::int64_t (*forward_scratch)(const Shape&);  ///< floats
  void (*forward)(const ForwardBlock&);
  void (*delta)(const DeltaBlock&);
  std::int64_t (*query_gradient_scratch)(const Shape&);
  void (*query_gradient)(const QueryGradientBlock&);
  std::int64_t (*key_block_scratch)(const Shape&, std::int64_t key_block);
  void (*key_block)(const KeyBlock&);
};

}  // namespace warpmeter::attention::flash_detail

namespace warpmeter::attention {
#define WM_FLASH_DECLARE(isa)                                                                     \
  namespace isa {                                                                                 \
  std::int64_t flash_forward_scratch(const flash_detail::Shape& shape);                           \
  void flash_forward(const flash_detail::ForwardBlock& block);                                    \
  void flash_delta(const flash_detail::DeltaBlock& block);                                        \
  std::int64_t flash_query_gradient_scratch(const flash_detail::Shape& shape);                    \
  void flash_query_gradient(const flash_detail::QueryGradientBlock& block);                       \
  std::int64_t flash_key_block_scratch(const flash_detail::Shape& shape, std::int64_t key_block); \
  void flash_key_block(const flash_detail::KeyBlock& block);                                      \
  }
WM_FLASH_DECLARE(generic)
#if defined(__x86_64__)
WM_FLASH_DECLARE(avx2)
WM_FLASH_DECLARE(avx512)
#endif
#undef WM_FLASH_DECLARE

#if defined(__x86_64__)
// bf16 operands in bf16 products.
#define WM_FLASH_DECLARE_BF16(isa)                                                                     \
  namespace isa {                                                                                      \
  std::int64_t flash_bf16_forward_scratch(const flash_detail::Shape& shape);                           \
  void flash_bf16_forward(const flash_detail::ForwardBlock& block);                                    \
  void flash_bf16_delta(const flash_detail::DeltaBlock& block);                                        \
  std::int64_t flash_bf16_query_gradient_scratch(const flash_detail::Shape& shape);                    \
  void flash_bf16_query_gradient(const flash_detail::QueryGradientBlock& block);                       \
  std::int64_t flash_bf16_key_block_scratch(const flash_detail::Shape& shape, std::int64_t key_block); \
  void flash_bf16_key_block(const flash_detail::KeyBlock& block);                                      \
  }
WM_FLASH_DECLARE_BF16(avx512_bf16)
WM_FLASH_DECLARE_BF16(amx_bf16)
#endif
}  // namespace warpmeter::attention
