#pragma once

#include <cstdint>

#include "kernels/attention/detail/flash_kernels.hpp"

/// What the CPU decode driver and its per-ISA kernels say to each other: plain structs, no inline code.
namespace warpmeter::attention::decode_detail {

using flash_detail::Element;

/// Partial rows of o are this far apart: head_dim rounded up to the widest vector.
inline constexpr std::int64_t kRowPadding = 16;
/// Query rows of one stream at most.
inline constexpr std::int64_t kMostRows = 128;

/// What is asked for while a run of rows is worked on: each time the row that is `rows` further on, for the last rows
/// of the run the first ones of the run that is read after it.
struct Ahead {
  const char* next = nullptr;
  std::int64_t rows = 0;  ///< 0: nothing is asked for
};

/// Keys (or values) of a head that lie in one page: rows of bf16, `vectors` times 32 elements, `stride` elements apart.
struct Bf16Rows {
  const std::uint16_t* first = nullptr;
  std::int64_t stride = 0, count = 0, vectors = 0;
  Ahead ahead;
};

/// Query rows that Bf16Products take. One alone reads from memory faster as it widens keys (dev/decode_cpu.md).
inline constexpr std::int64_t kLeastBf16Rows = 2, kMostBf16Rows = 8;
/// Elements of the rows are a multiple of this.
inline constexpr std::int64_t kBf16Step = 32;

/// Products of bf16 rows that are not widened (decode_bf16_kernels.cpp).
///
/// What an instruction for them does otherwise than fp32 arithmetic on the widened values: it takes subnormal operands
/// for 0, gives 0 for a subnormal result, and rounds a sum of two products in an order of its own. The products are
/// exact. So a score is off by what sums of fp32 are off anyway, as long as no |q| lies below 2^-126 (other than 0) or
/// above 2^64: a subnormal |k| is then worth 2^-62 at most. In a sum of P v each term is off by 2^-126 at most, which
/// shows only where all of a result is as small. decode_stream() looks at both, and takes the other way.
struct Bf16Products {
  /// scores[r * score_stride + key] = q_r . k_key; rows of q lie one after the other. Up to 15 scores more are written.
  void (*scores)(const Bf16Rows& k, const std::uint16_t* q, std::int64_t rows, float* scores,
                 std::int64_t score_stride);
  /// o_r = scale_r o_r + sum over keys of p[r * p_stride + key] v_key, P rounded to bf16, as flash attention on GPUs
  /// has it. Overwrites p. Of 32 columns of o the first 16 elements are 0 to 3, 8 to 11, 16 to 19, 24 to 27.
  void (*add_values)(const Bf16Rows& v, float* p, std::int64_t p_stride, std::int64_t rows, float* o,
                     std::int64_t o_stride, const float* scale);
};

/// What every stream of a call shares.
struct Shape {
  Element query_element = Element::fp32, cache_element = Element::fp32;
  std::int64_t head_dim = 0;
  std::int64_t tokens = 0, group = 0;  ///< row r of a key/value head is token r / group, head r % group
  std::int64_t block = 0;              ///< keys scored at once
  std::int64_t ahead_bytes = 0;        ///< how far ahead keys and values are asked for; 0: the caches hold them
  bool causal = true;
  float scale = 0;
  /// Not null only where queries and cache are bf16, head_dim a multiple of kBf16Step, and rows in their range.
  const Bf16Products* bf16 = nullptr;
};

/// One stream: query rows [first_row, first_row + rows) of some key/value heads over some of their blocks of keys; of a
/// block all heads are read before the next one, as they lie in pages. Partial p of head h lies at
/// o + h * part_head_stride + p * part_stride (rows kRowPadding-padded) and m, l + h * head_stride_ml + p *
/// row_stride_ml.
struct Stream {
  const Shape* shape = nullptr;
  std::int64_t heads = 1;
  const void* q = nullptr;  ///< token 0 of the first group's first head
  std::int64_t q_token_stride = 0, q_head_stride = 0;
  const void *k = nullptr, *v = nullptr;  ///< row 0 of the first head in page 0
  const std::int32_t* pages = nullptr;    ///< of this sequence
  std::int64_t page_size = 0, page_stride = 0, head_stride = 0, row_stride = 0;
  std::int64_t length = 0;  ///< keys of the sequence
  std::int64_t first_row = 0, rows = 0;
  std::int64_t first_block = 0, block_step = 1, blocks = 0;
  bool part_a_block = false;  ///< every block is a partial of its own, else the stream is one
  float *o = nullptr, *m = nullptr, *l = nullptr;
  std::int64_t part_stride = 0, row_stride_ml = 0;
  std::int64_t part_head_stride = 0, head_stride_ml = 0;
  float* scratch = nullptr;
};

struct Kernels {
  const char* isa;
  std::int64_t (*scratch)(const Shape& shape, std::int64_t rows, std::int64_t heads);  ///< floats
  void (*run)(const Stream& stream);
};

}  // namespace warpmeter::attention::decode_detail

namespace warpmeter::attention {
#define WM_DECODE_DECLARE(isa)                                                                           \
  namespace isa {                                                                                        \
  std::int64_t decode_scratch(const decode_detail::Shape& shape, std::int64_t rows, std::int64_t heads); \
  void decode_stream(const decode_detail::Stream& stream);                                               \
  }
WM_DECODE_DECLARE(generic)
#if defined(__x86_64__)
WM_DECODE_DECLARE(avx2)
WM_DECODE_DECLARE(avx512)
namespace avx512_bf16 {
void decode_bf16_scores(const decode_detail::Bf16Rows& k, const std::uint16_t* q, std::int64_t rows, float* scores,
                        std::int64_t score_stride);
void decode_bf16_values(const decode_detail::Bf16Rows& v, float* p, std::int64_t p_stride, std::int64_t rows, float* o,
                        std::int64_t o_stride, const float* scale);
}  // namespace avx512_bf16
#endif
#undef WM_DECODE_DECLARE
}  // namespace warpmeter::attention
