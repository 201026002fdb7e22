#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define WM_HOST_DEVICE __host__ __device__
#else
#define WM_HOST_DEVICE
#endif

namespace warpmeter::ceilings::detail {

/// SplitMix64's output function: the bits of element `index`.
WM_HOST_DEVICE inline std::uint64_t random_bits(std::uint64_t index) {
  std::uint64_t z = (index + 1) * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

/// Nearly normal, mean 0, standard deviation 1: the sum of four 16-bit uniform numbers. A matmul on zeros or constants
/// draws less power and runs faster than one on data.
WM_HOST_DEVICE inline float random_value(std::uint64_t index) {
  const std::uint64_t bits = random_bits(index);
  const auto sum =
      static_cast<std::int32_t>((bits & 0xFFFF) + ((bits >> 16) & 0xFFFF) + ((bits >> 32) & 0xFFFF) + (bits >> 48));
  constexpr float kMean = 2 * 65535.0f;
  constexpr float kDeviation = 37837.2f;  // 65536 * sqrt(4 / 12)
  return (static_cast<float>(sum) - kMean) / kDeviation;
}

}  // namespace warpmeter::ceilings::detail
