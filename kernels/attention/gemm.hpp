#pragma once

#include <cstdint>

#include "kernels/attention/problem.hpp"
#include "kernels/runtime/dtype.hpp"

namespace warpmeter::attention {

/// Which part of a product matters under the causal mask. Queries see keys up to their own index plus `diagonal`
/// (kv_len - seq_len); what nobody sees is neither computed nor read, by panels of rows.
enum class Skip : std::uint8_t {
  nothing,
  columns,      ///< C is queries x keys: columns beyond the panel's last query's keys stay unwritten
  inner_end,    ///< A is queries x keys: its columns beyond the panel's last query's keys count as 0
  inner_begin,  ///< A^T is keys x queries: queries before the first that sees a key of the panel count as 0
};

/// C[b, h] = sum over t of op(A[b, h_a]) op(B[b, h_b]) for every batch entry and every head h of C.
///
/// With `terms` products summed (over the query heads that share a key/value head), the operand's head is
/// (h * terms + t) / sharing, `sharing` being the number of consecutive heads that read the same matrix.
struct GemmProblem {
  std::int64_t batch = 1;
  std::int64_t heads = 1;  ///< of C
  std::int64_t m = 1, n = 1, k = 1;
  bool transpose_a = false, transpose_b = false;  ///< A is stored k x m; B is stored n x k
  std::int64_t terms = 1;
  std::int64_t sharing_a = 1, sharing_b = 1;
  DType dtype = DType::fp32;  ///< of A, B and C in memory: fp32, bf16 or fp16
  Skip skip = Skip::nothing;
  std::int64_t diagonal = 0;
};

/// Rows of C that are computed in one piece at most; what Skip leaves out is a multiple of whole panels.
inline constexpr std::int64_t kMaxGemmPanel = 256;

/// Computes the products on the CPU: panels of rows are dealt over parallel_for(), each to calls of a single-threaded
/// cblas_sgemm. 16-bit operands are widened to fp32 panel by panel, accumulated in fp32, rounded once. The result does
/// not depend on the number of threads. Blocks of widened operands (768 KiB a thread) are the product's own working
/// store, like the BLAS's packing buffers, and not the allocator's.
void gemm_cpu(const GemmProblem& problem, ConstOperand a, ConstOperand b, Operand c);

}  // namespace warpmeter::attention
