#pragma once

#include <cstddef>

#include "kernels/attention/gemm.hpp"
#include "kernels/runtime/context.hpp"
#include "kernels/runtime/tensor.hpp"

namespace warpmeter::attention {

/// Matrix products on cuBLAS, all in one stream, with a workspace from the context's allocator.
///
/// Accumulation is fp32. `fp32` products are fp32 throughout (no TF32), `tf32` ones round operands to TF32, 16-bit ones
/// never add partial sums in 16 bits. The same problem gives the same bits on every run.
///
/// A handle of the library is kept for each thread and device, until the thread ends. What it takes for itself on the
/// device is told to the allocator as external bytes when it is made.
class CudaGemm {
 public:
  /// Bytes of workspace for products of which the largest matrix has `bytes`: no more than that, no more than what
  /// NVIDIA recommends for Hopper (32 MiB). A multiple of the allocator's rounding.
  [[nodiscard]] static std::size_t workspace_bytes(std::size_t bytes);

  /// Throws OutOfMemory. Products may be enqueued while it lives.
  CudaGemm(const Context& context, std::size_t workspace_bytes);
  ~CudaGemm();
  CudaGemm(const CudaGemm&) = delete;
  CudaGemm& operator=(const CudaGemm&) = delete;

  /// Enqueues C = op(A) op(B) for every batch entry and head; C's old values are not read. `problem.skip` is nothing,
  /// dtype fp32, tf32, bf16 or fp16; sharing_a is 1, and terms or sharing_b may be above 1, not both. k >= 1.
  ///
  /// Heads and batch entries go in as few calls as the strides allow: one for dense (batch, heads, rows, columns).
  /// Summed `terms` whose matrices do not follow one another in memory are added up call by call, for 16-bit types in
  /// a dense fp32 copy of C that the allocator gives (so not for dense operands). Throws OutOfMemory then.
  void multiply(const GemmProblem& problem, ConstOperand a, ConstOperand b, Operand c) const;

 private:
  Context context_;
  Buffer workspace_;
  void* handle_ = nullptr;  ///< cublasHandle_t, borrowed from the thread's own
};

}  // namespace warpmeter::attention
