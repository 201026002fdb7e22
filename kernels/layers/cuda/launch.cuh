#pragma once

// Launches that begin while the kernel before them in the stream still ends: what such a kernel does first is to wait
// for it. That takes the launch's own microsecond out of a chain of short kernels, in a stream and in a recorded graph.
//
// Every thread of a kernel that goes through launch() calls follow_previous() before it touches memory: then all work
// before it is done and visible, as without. The kernel before may be any, the library's too. Not for a kernel that
// comes right after a memset or a wait for another stream: a graph knows early launches only from kernel to kernel.
// Source: CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization".

#include <utility>

#include <cuda_runtime.h>

#include "kernels/runtime/context.hpp"
#include "kernels/runtime/cuda_check.hpp"

namespace warpmeter::layers::cuda {

/// Waits for all work before this kernel, then lets the next one begin to wait for this one.
__device__ __forceinline__ void follow_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/// Whether the device runs code of this build in which follow_previous() waits: that of its very architecture. Code for
/// an older one, which the driver translates, would not.
inline bool may_follow_early(Device device) {
#ifdef __CUDA_ARCH_LIST__
  constexpr int kArchitectures[] = {__CUDA_ARCH_LIST__};
  int major = 0, minor = 0;
  WM_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device.index));
  WM_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device.index));
  for (const int architecture : kArchitectures) {
    if (architecture >= 900 && architecture == major * 100 + minor * 10) return true;
  }
#endif
  return false;
}

template <class... Parameters, class... Arguments>
void launch(const Context& context, void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes,
            Arguments&&... arguments) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = static_cast<cudaStream_t>(context.stream.handle);
  config.attrs = &early;
  config.numAttrs = may_follow_early(context.device()) ? 1 : 0;
  WM_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...));
}

}  // namespace warpmeter::layers::cuda
