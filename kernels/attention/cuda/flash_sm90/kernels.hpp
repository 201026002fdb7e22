#pragma once

#include <cuda_runtime_api.h>

#include "kernels/attention/cuda/flash_sm90/params.hpp"
#include "kernels/runtime/dtype.hpp"

/// The compiled kernels behind plain launchers: what host code sees of the .cu files.
namespace warpmeter::attention::flash_sm90 {

struct ForwardKernel {
  const char* name;  ///< "flash_sm90_d128_causal_bf16"
  int head_dim;      ///< of the tile; the problem's may be smaller, a multiple of 8
  /// Enqueues O and LSE. Throws DeviceError when the driver refuses the tensor maps or the launch.
  void (*launch)(const ForwardArguments& arguments, cudaStream_t stream);
};

/// The kernel for bf16 or fp16 and head dims 64, 80, 96, 128, 256; null for others.
[[nodiscard]] const ForwardKernel* forward_kernel(DType dtype, int head_dim, bool causal);

/// The kernel for keys and values in pages, without a mask, for bf16 or fp16 and head dims 64 and 128; null for others.
/// It takes whole blocks of kPagedBlock keys alone: kv_len is a multiple of it.
[[nodiscard]] const ForwardKernel* paged_forward_kernel(DType dtype, int head_dim);

/// A counter for one launch on the current device, zeroed. There are 1024 a device, handed out in turn: while a launch
/// is under way at most 1023 others may be issued, and a captured launch may not be replayed beside others.
[[nodiscard]] WorkCounter* next_work_counter();

}  // namespace warpmeter::attention::flash_sm90
