#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/collectives/communicator.hpp"
#include "kernels/runtime/dtype.hpp"

/// Random elements of every type as bytes, and what a reduction of them is in fp64 (int32: exactly).
namespace warpmeter::collectives::values {

/// A number from (seed, index) alone: every rank knows every rank's data. splitmix64's finalizer.
inline std::uint64_t hash(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t x = seed * 0x9E3779B97F4A7C15ULL + index + 1;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

inline double half_value(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const double mantissa = bits & 1023;
  const double magnitude = exponent == 0    ? std::ldexp(mantissa, -24)
                           : exponent == 31 ? (mantissa == 0 ? INFINITY : NAN)
                                            : std::ldexp(1024 + mantissa, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

/// The element as a number.
inline double read(DType dtype, const void* data, std::int64_t index) {
  const char* p = static_cast<const char*>(data) + index * static_cast<std::int64_t>(size_of(dtype));
  if (dtype == DType::int32) {
    std::int32_t v;
    std::memcpy(&v, p, 4);
    return v;
  }
  if (dtype == DType::fp32) {
    float v;
    std::memcpy(&v, p, 4);
    return v;
  }
  std::uint16_t bits;
  std::memcpy(&bits, p, 2);
  if (dtype == DType::fp16) return half_value(bits);
  const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
  float v;
  std::memcpy(&v, &wide, 4);
  return v;
}

/// A random element in [-2, 2), every bit of its type in use; int32 over its whole range.
inline void write_random(DType dtype, void* data, std::int64_t index, std::uint64_t seed) {
  const std::uint64_t h = hash(seed, static_cast<std::uint64_t>(index));
  char* p = static_cast<char*>(data) + index * static_cast<std::int64_t>(size_of(dtype));
  if (dtype == DType::int32) {
    const auto v = static_cast<std::uint32_t>(h);
    std::memcpy(p, &v, 4);
  } else if (dtype == DType::fp32) {
    const auto v = static_cast<float>(static_cast<double>(h >> 11) * 0x1p-51 - 2.0);
    std::memcpy(p, &v, 4);
  } else {
    // Sign and mantissa at random, exponents from 2^-4 to 2^0.
    const unsigned exponent = static_cast<unsigned>(h >> 32) % 5;
    const unsigned sign = static_cast<unsigned>(h >> 40) & 1U;
    const auto bits = static_cast<std::uint16_t>(
        dtype == DType::bf16 ? sign << 15 | (123 + exponent) << 7 | (static_cast<unsigned>(h) & 0x7FU)
                             : sign << 15 | (11 + exponent) << 10 | (static_cast<unsigned>(h) & 0x3FFU));
    std::memcpy(p, &bits, 2);
  }
}

/// op over the ranks' elements, and the error that the result may have: the fp32 additions' and `roundings` to the
/// type, of which all but one are of partial results; none for int32, max and min.
struct Expected {
  double value = 0;
  double tolerance = 0;
};
inline Expected expected(DType dtype, ReduceOp op, const std::vector<double>& elements, int roundings = 1) {
  const auto n = static_cast<double>(elements.size());
  if (op == ReduceOp::max || op == ReduceOp::min) {
    double best = elements[0];
    for (const double x : elements) best = op == ReduceOp::max ? std::fmax(best, x) : std::fmin(best, x);
    return {best, 0};
  }
  double total = 0, magnitude = 0;
  for (const double x : elements) {
    total += x;
    magnitude += std::fabs(x);
  }
  if (dtype == DType::int32) {
    const auto sum = static_cast<std::int64_t>(total);
    if (op == ReduceOp::avg) return {static_cast<double>(sum / static_cast<std::int64_t>(elements.size())), 0};
    return {static_cast<double>(static_cast<std::int32_t>(static_cast<std::uint32_t>(sum))), 0};
  }
  const double divisor = op == ReduceOp::avg ? n : 1;
  const double in_fp32 = n * 0x1p-24 * magnitude / divisor;
  double rounding = dtype == DType::fp32 ? 0 : unit_roundoff(dtype) * std::fabs(total / divisor);
  if (dtype != DType::fp32) rounding += (roundings - 1) * unit_roundoff(dtype) * magnitude / divisor;
  return {total / divisor, (in_fp32 + rounding) * (1 + 0x1p-7)};
}

}  // namespace warpmeter::collectives::values
