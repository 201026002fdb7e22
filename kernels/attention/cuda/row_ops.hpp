#pragma once

#include <cstdint>

#include "kernels/attention/cuda/score_rows.hpp"
#include "kernels/attention/problem.hpp"
#include "kernels/runtime/dtype.hpp"
#include "kernels/runtime/stream.hpp"

namespace warpmeter::attention::detail {

/// From which end of the matrix a kernel starts. An operation that begins where the one before it ended finds the last
/// of that one's output in the L2 cache.
enum class Order : std::uint8_t { ascending, descending };

/// What naive and fused do to a whole score matrix on CUDA, in one storage type: fp32 arithmetic, each result rounded
/// once to that type. Matrices are dense, 16-byte aligned, rows of any length, any number of elements. Launchers
/// enqueue on the stream, allocate nothing and check the launch. Device pointers throughout.
struct CudaRowOps {
  // One operation each, as an eager framework has them. `out` is not `in`.
  void (*scale)(const void* in, void* out, std::int64_t count, float factor, Order order, StreamView stream);
  /// Visible elements as they are, `fill` (-inf forward, 0 backward) beyond; what is not visible is not read.
  void (*mask)(const ScoreRows& rows, const void* in, void* out, float fill, Order order, StreamView stream);

  /// out = softmax(factor * in) over each row's visible elements, then zeros to zeros_end(); nothing else of a row is
  /// read or written. lse (rows, fp32) = ln(sum(exp(factor * in))). A row that sees nothing, or -inf alone: zeros and
  /// -inf. `out` may be `in`; factor > 0. One read, one write, for rows of up to 32,000 elements; beyond, two reads.
  void (*softmax)(const ScoreRows& rows, const void* in, void* out, float* lse, float factor, Order order,
                  StreamView stream);
  /// ds = p * (dp - sum(p * dp)) * factor over the visible elements, then zeros to zeros_end(). `ds` may be `dp`. One
  /// read of each, one write, for rows of up to 16,000 elements; beyond, two reads.
  void (*softmax_backward)(const ScoreRows& rows, const void* p, const void* dp, void* ds, float factor, Order order,
                           StreamView stream);

  /// Zeros in the rows [0, row_end) of every matrix of an operand (batch, heads, row, head_dim), any strides.
  void (*zero_rows)(const Operand& operand, std::int64_t batch, std::int64_t heads, std::int64_t row_end,
                    std::int64_t head_dim, StreamView stream);
  /// Rounds dense fp32 matrices (batch, heads, rows, head_dim) into an operand of this type, any strides.
  void (*round_to)(const float* in, const Operand& out, std::int64_t batch, std::int64_t heads, std::int64_t rows,
                   std::int64_t head_dim, StreamView stream);
};

/// The operations in the storage type of `dtype` (fp32 and tf32, bf16, fp16).
[[nodiscard]] const CudaRowOps& cuda_row_ops(DType dtype);

// One translation unit a storage type: row_ops_<type>.cu.
extern const CudaRowOps kCudaRowOpsFp32, kCudaRowOpsBf16, kCudaRowOpsFp16;

}  // namespace warpmeter::attention::detail
