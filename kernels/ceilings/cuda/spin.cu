// spin_kernel: grid 1 x 1 thread; returns once globaltimer has moved by duration_ns since it started.
#include <cuda_runtime.h>

#include "kernels/ceilings/detail/backends.hpp"
#include "kernels/runtime/cuda_check.hpp"

namespace warpmeter::ceilings::detail {
namespace {

__device__ unsigned long long globaltimer_ns() {
  unsigned long long value;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value)::"memory");
  return value;
}

__global__ void spin_kernel(unsigned long long duration_ns) {
  const unsigned long long start = globaltimer_ns();
  while (globaltimer_ns() - start < duration_ns) {
  }
}

}  // namespace

void spin_for_cuda(std::int64_t duration_ns, StreamView stream) {
  const unsigned long long duration = duration_ns > 0 ? static_cast<unsigned long long>(duration_ns) : 0;
  spin_kernel<<<1, 1, 0, static_cast<cudaStream_t>(stream.handle)>>>(duration);
  check_launch();
}

}  // namespace warpmeter::ceilings::detail
