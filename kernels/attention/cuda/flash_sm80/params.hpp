#pragma once

#include <cstdint>

/// What the flash_sm80 kernels take: plain structs passed by value, shared by host code and device code. Pointers are
/// device memory; strides and offsets count elements and are 64-bit. Tensor layouts and formulas: problem.hpp.
namespace warpmeter::attention::flash_sm80 {

/// A (batch, heads, rows, head_dim) operand with contiguous head_dim.
struct TensorView {
  void* data = nullptr;
  std::int64_t batch_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t row_stride = 0;
};

struct ConstTensorView {
  const void* data = nullptr;
  std::int64_t batch_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t row_stride = 0;
};

struct Shape {
  std::int64_t batch = 0;
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t seq_len = 0;
  std::int64_t kv_len = 0;
  int head_dim = 0;
  bool causal = false;
  float scale = 0;       ///< of the scores, > 0
  float scale_log2 = 0;  ///< scale * log2(e): the softmax works in powers of two
};

/// The order in which thread blocks take (tile, batch x head) pairs. Heads are taken in groups whose keys and values
/// share the L2 cache; within a group the tile is the slow index when `tiles_outer`, else the head is.
struct Schedule {
  std::int64_t first = 0;  ///< work item of block 0 of this launch: what exceeds a grid goes into a further launch
  std::int64_t heads = 0;  ///< batch x heads: query heads, or key/value heads in the key-block kernels
  std::int64_t heads_per_group = 1;
  std::int64_t tiles = 0;
  bool tiles_outer = false;
  bool descending = false;  ///< the last tile first
};

struct ForwardParams {
  Shape shape;
  Schedule schedule;
  ConstTensorView q, k, v;
  TensorView o;
  float* lse = nullptr;       ///< (batch, num_heads, seq_len)
  float* lse_rest = nullptr;  ///< tf32 kernels, may be null: what lse lost when it was rounded, in the same layout
  bool vector = false;        ///< tf32 kernels: rows of all operands are 16-byte aligned, and so is head_dim
};

struct BackwardParams {
  Shape shape;
  Schedule schedule;
  ConstTensorView q, k, v, o, d_o;
  const float* lse = nullptr;
  const float* lse_rest = nullptr;  ///< tf32 kernels, may be null: the forward's
  bool vector = false;              ///< as in ForwardParams
  TensorView dq, dk, dv;
  bool deterministic = false;  ///< the additions into dq_accumulator take turns, in key-block order

  // Workspace; layouts in backward_rows.cuh and tf32_backward_rows.cuh.
  float* row_stats = nullptr;       ///< LSE and D = rowsum(O * dO)
  float* dq_accumulator = nullptr;  ///< fp32
  int* turns = nullptr;             ///< one a query tile; null when not deterministic
};

/// Bytes of each workspace of a backward, 0 for what the variant does not use.
struct BackwardWorkspace {
  std::int64_t row_stats = 0;
  std::int64_t dq_accumulator = 0;
  std::int64_t turns = 0;
};

/// Heads whose `bytes_per_head` of streamed operands stay in a GPU's L2 cache together: Schedule::heads_per_group.
/// 24 MiB leave room beside them in the 40 to 50 MiB of data-center parts; smaller caches lose some reuse.
[[nodiscard]] constexpr std::int64_t heads_per_group(std::int64_t bytes_per_head) {
  constexpr std::int64_t kCacheBytes = std::int64_t{24} << 20;
  return bytes_per_head < kCacheBytes ? kCacheBytes / bytes_per_head : 1;
}

}  // namespace warpmeter::attention::flash_sm80
