#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime.h>

#include "kernels/attention/cuda/flash_sm80/check_cuda.hpp"
#include "kernels/attention/cuda/flash_sm80/params.hpp"

namespace warpmeter::attention::flash_sm80 {

/// Launches `kernel` over all of params.schedule, one block a work item, in as many grids as it takes: grid.x ends at
/// 2^31 - 1 blocks. Enqueues only.
template <class Params>
void launch_in_grids(void (*kernel)(Params), Params params, int threads, std::size_t shared_bytes,
                     cudaStream_t stream) {
  constexpr std::int64_t kMostBlocks = std::int64_t{1} << 30;
  if (shared_bytes > 48 * 1024) {
    check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(shared_bytes)),
               "cudaFuncSetAttribute(MaxDynamicSharedMemorySize)");
  }
  const std::int64_t total = params.schedule.heads * params.schedule.tiles;
  for (std::int64_t first = 0; first < total; first += kMostBlocks) {
    params.schedule.first = first;
    const std::int64_t left = total - first;
    kernel<<<static_cast<unsigned>(left < kMostBlocks ? left : kMostBlocks), threads, shared_bytes, stream>>>(params);
    check_cuda(cudaGetLastError(), "kernel launch");
  }
}

}  // namespace warpmeter::attention::flash_sm80
