#pragma once

#include <cuda_runtime_api.h>

#include "kernels/attention/cuda/flash_sm80/params.hpp"
#include "kernels/runtime/dtype.hpp"

/// The compiled kernels behind plain launchers: what host code sees of the .cu files.
namespace warpmeter::attention::flash_sm80 {

struct ForwardKernel {
  const char* name;  ///< "flash_sm80_d64_bf16"
  void (*launch)(ForwardParams params, cudaStream_t stream);
};

struct BackwardKernel {
  const char* name;
  void (*launch)(BackwardParams params, cudaStream_t stream);
  BackwardWorkspace (*workspace)(const Shape& shape, bool deterministic);
};

/// The kernel for a type and head dim: the smallest compiled one that head_dim fits. `vector`: every row of every
/// operand is 16-byte aligned and so is head_dim; else 16-bit types have kernels that copy element by element, and
/// those for fp32 and tf32, the same ones, want to know by params.vector.
[[nodiscard]] const ForwardKernel& forward_kernel(DType dtype, int head_dim, bool vector);
[[nodiscard]] const BackwardKernel& backward_kernel(DType dtype, int head_dim, bool vector);
/// The backward in two passes; alignment by params.vector.
[[nodiscard]] const BackwardKernel& two_pass_kernel(DType dtype, int head_dim);

}  // namespace warpmeter::attention::flash_sm80
