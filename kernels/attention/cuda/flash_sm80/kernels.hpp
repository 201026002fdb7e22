#pragma once

#include <cstddef>

#include <cuda_runtime_api.h>

#include "kernels/attention/cuda/flash_sm80/params.hpp"
#include "kernels/runtime/dtype.hpp"

/// The compiled kernels behind plain launchers: what host code sees of the .cu files.
namespace warpmeter::attention::flash_sm80 {

struct ForwardKernel {
  const char* name;  ///< "flash_sm80_d64_bf16"
  void (*launch)(ForwardParams params, cudaStream_t stream);
  std::size_t shared_bytes;  ///< of a thread block
};

struct BackwardKernel {
  const char* name;
  void (*launch)(BackwardParams params, cudaStream_t stream);
  BackwardWorkspace (*workspace)(const Shape& shape, bool deterministic);
  std::size_t shared_bytes;  ///< of a thread block, in the kernel that takes most
};

/// Shared memory that a thread block may have: 227 KiB on sm_90 and sm_100, 163 on sm_80 and sm_87, 99 on the others
/// from sm_80 on. Every type and head dim has kernels for the least of them.
constexpr std::size_t kSharedBytesSm90 = std::size_t{227} << 10;
constexpr std::size_t kSharedBytesSm80 = std::size_t{163} << 10;
constexpr std::size_t kSharedBytesLeast = std::size_t{99} << 10;
/// What the current device allows; kSharedBytesSm90 where there is none. Throws DeviceError.
[[nodiscard]] std::size_t shared_memory_limit();

/// The kernel for a type and head dim: the smallest compiled one that head_dim fits, and of those with tiles for
/// smaller shared memory (in the name: _163k, _99k) the largest within `shared_limit` bytes a block. `vector`: every
/// row of every operand is 16-byte aligned and so is head_dim; else 16-bit types have kernels that copy element by
/// element, of the same tiles, and those for fp32 and tf32, the same ones, want to know by params.vector.
[[nodiscard]] const ForwardKernel& forward_kernel(DType dtype, int head_dim, bool vector, std::size_t shared_limit);
[[nodiscard]] const BackwardKernel& backward_kernel(DType dtype, int head_dim, bool vector, std::size_t shared_limit);
/// The backward in two passes; alignment by params.vector.
[[nodiscard]] const BackwardKernel& two_pass_kernel(DType dtype, int head_dim, std::size_t shared_limit);

}  // namespace warpmeter::attention::flash_sm80
