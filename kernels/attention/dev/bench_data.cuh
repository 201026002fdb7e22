#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <cuda_runtime.h>

#include "kernels/attention/cuda/flash_sm80/check_cuda.hpp"

/// What the benches of this folder share: data on the device and what comes back. Not for the product.
namespace warpmeter::attention::dev {

__device__ inline std::uint32_t hash(std::uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdULL;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ULL;
  x ^= x >> 33;
  return static_cast<std::uint32_t>(x);
}

/// Normal numbers: what the operands are decides how much power a product takes, and so its clock.
template <class T>
__global__ void fill_normal_kernel(T* out, std::int64_t count, std::uint64_t seed) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    const float u = (hash(seed * 0x9e3779b97f4a7c15ULL + 2 * i) + 1.0f) * 0x1p-32f;
    const float w = hash(seed * 0x9e3779b97f4a7c15ULL + 2 * i + 1) * 0x1p-32f;
    out[i] = static_cast<T>(sqrtf(-2.0f * logf(u)) * cospif(2.0f * w));
  }
}

template <class U>
std::vector<U> to_host(const void* data, std::int64_t count) {
  std::vector<U> host(static_cast<std::size_t>(count));
  flash_sm80::check_cuda(cudaMemcpy(host.data(), data, host.size() * sizeof(U), cudaMemcpyDeviceToHost),
                         "copy to the host");
  return host;
}

/// Largest |error| over largest |reference|; NaN for a NaN or a misplaced infinity.
template <class U>
double relative_error(const std::vector<U>& got, const std::vector<double>& expected) {
  double error = 0, largest = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double value = static_cast<float>(got[i]);
    if (std::isinf(expected[i]) && value == expected[i]) continue;
    if (!std::isfinite(value) || !std::isfinite(expected[i])) return std::nan("");
    error = std::max(error, std::abs(value - expected[i]));
    largest = std::max(largest, std::abs(expected[i]));
  }
  return largest > 0 ? error / largest : error;
}

}  // namespace warpmeter::attention::dev
