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

/// The kernel for a 16-bit type and head dim: the smallest compiled one that head_dim fits. `vector`: every row of
/// every operand is 16-byte aligned and head_dim is a multiple of 8; else a kernel that copies element by element.
[[nodiscard]] const ForwardKernel& forward_kernel(DType dtype, int head_dim, bool vector);
[[nodiscard]] const BackwardKernel& backward_kernel(DType dtype, int head_dim, bool vector);

}  // namespace warpmeter::attention::flash_sm80
