// fill_kernel: one element a thread and step, grid-stride.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/ceilings/cuda/fill.hpp"
#include "kernels/ceilings/detail/random_value.hpp"
#include "kernels/runtime/cuda_check.hpp"

namespace warpmeter::ceilings::detail {
namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kBlocks = 2048;

__device__ void store(float* to, float value) {
  *to = value;
}
__device__ void store(__nv_bfloat16* to, float value) {
  *to = __float2bfloat16_rn(value);
}

template <class T>
__global__ void fill_kernel(T* data, std::size_t elements, std::uint64_t seed) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < elements; i += step) {
    store(data + i, random_value(seed + i));
  }
}

template <class T>
void fill(void* data, std::size_t elements, std::uint64_t seed, StreamView stream) {
  fill_kernel<<<kBlocks, kThreads, 0, static_cast<cudaStream_t>(stream.handle)>>>(static_cast<T*>(data), elements,
                                                                                  seed);
  check_launch();
}

}  // namespace

void fill_random_fp32(void* data, std::size_t elements, std::uint64_t seed, StreamView stream) {
  fill<float>(data, elements, seed, stream);
}
void fill_random_bf16(void* data, std::size_t elements, std::uint64_t seed, StreamView stream) {
  fill<__nv_bfloat16>(data, elements, seed, stream);
}

}  // namespace warpmeter::ceilings::detail
