#pragma once

#include <cstdint>

#include "kernels/runtime/dtype.hpp"

namespace warpmeter::attention::detail {

/// What naive and fused do to one row of a score matrix, in one storage type: fp32 arithmetic, each result rounded
/// once to that type. Rows are `count` contiguous elements; `visible` of them, from the first, are seen by the query.
struct RowOps {
  void (*to_float)(const void* in, float* out, std::int64_t count);
  void (*from_float)(const float* in, void* out, std::int64_t count);

  // One operation each, as an eager framework has them.
  void (*scale)(const void* in, void* out, std::int64_t count, float factor);
  /// The first `visible` elements as they are, `fill` (-inf forward, 0 backward) beyond.
  void (*mask)(const void* in, void* out, std::int64_t count, std::int64_t visible, float fill);
  /// out = exp(in - LSE); returns LSE = ln(sum exp(in)). A row of -inf alone: zeros and -inf.
  float (*softmax)(const void* in, void* out, std::int64_t count);
  /// ds = p * (dp - sum(p * dp)).
  void (*softmax_backward)(const void* p, const void* dp, void* ds, std::int64_t count);

  // One pass in place, over the visible part alone; elements from `visible` to `end` become 0.
  /// s = softmax(scale * s); returns LSE of the scaled scores.
  float (*scaled_softmax)(void* s, std::int64_t visible, std::int64_t end, float scale);
  /// dp = p * (dp - sum(p * dp)) * scale.
  void (*scaled_softmax_backward)(const void* p, void* dp, std::int64_t visible, std::int64_t end, float scale);
};

/// The operations in the storage type of `dtype` (fp32, bf16, fp16), for the instruction set in use.
[[nodiscard]] const RowOps& row_ops(DType dtype);

// The variants that row_ops.cpp chooses from; row_ops_kernels.cpp makes them.
#define WM_ROW_OPS_VARIANT(isa) \
  namespace isa {               \
  const RowOps* row_ops_fp32(); \
  const RowOps* row_ops_bf16(); \
  const RowOps* row_ops_fp16(); \
  }
WM_ROW_OPS_VARIANT(generic)
WM_ROW_OPS_VARIANT(avx2)
WM_ROW_OPS_VARIANT(avx512)
#undef WM_ROW_OPS_VARIANT

}  // namespace warpmeter::attention::detail
