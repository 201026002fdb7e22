// Reads memory so that the L2 holds it.
//
// grid: two blocks of 512 threads a multiprocessor, which stride over the 16-byte vectors. Loads are ordinary ones:
// with an evict-first hint (as a bandwidth test has it) vectors would replace one another and leave the rest of the
// cache alone.
#include <cstdint>

#include <cuda_runtime.h>

#include "kernels/runtime/cuda_check.hpp"
#include "tools/harness/cuda/stream_kernels.hpp"

namespace warpmeter::harness::detail {
namespace {

constexpr int kThreads = 512;

__global__ void __launch_bounds__(kThreads) read_kernel(const uint4* data, std::size_t vectors, unsigned* sink) {
  unsigned differs = 0;
  const std::size_t step = std::size_t{gridDim.x} * kThreads;
#pragma unroll 4
  for (std::size_t i = blockIdx.x * std::size_t{kThreads} + threadIdx.x; i < vectors; i += step) {
    const uint4 value = data[i];
    differs |= value.x | value.y | value.z | value.w;
  }
  if (differs != 0) *sink = differs;  // never: the buffer is zeros, which the compiler does not know
}

}  // namespace

void read_through_cache(const void* data, std::size_t bytes, void* sink, StreamView stream) {
  int multiprocessors = 0;
  WM_CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, stream.device.index));
  read_kernel<<<static_cast<unsigned>(2 * multiprocessors), kThreads, 0, static_cast<cudaStream_t>(stream.handle)>>>(
      static_cast<const uint4*>(data), bytes / sizeof(uint4), static_cast<unsigned*>(sink));
  check_launch();
}

}  // namespace warpmeter::harness::detail
