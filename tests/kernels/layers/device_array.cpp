#include "tests/kernels/layers/device_array.hpp"

#include <cmath>
#include <cstring>
#include <random>

#include "kernels/runtime/check.hpp"
#include "kernels/runtime/random_philox.hpp"

namespace warpmeter::layers::testing {

namespace {

double from_fp16(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  double value = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  if (exponent == 31) value = mantissa == 0 ? INFINITY : NAN;
  return (bits & 0x8000) != 0 ? -value : value;
}

double from_bf16(std::uint16_t bits) {
  const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return static_cast<double>(value);
}

void encode(std::span<const double> values, DType dtype, std::byte* to) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto single = static_cast<float>(values[i]);
    const auto whole = static_cast<std::int32_t>(dtype == DType::int32 ? values[i] : 0);
    std::uint16_t half = 0;
    switch (dtype) {
      case DType::fp32:
        std::memcpy(to + i * 4, &single, 4);
        break;
      case DType::int32:
        std::memcpy(to + i * 4, &whole, 4);
        break;
      case DType::bf16:
      case DType::fp16:
        half = dtype == DType::bf16 ? philox::to_bf16(single) : philox::to_fp16(single);
        std::memcpy(to + i * 2, &half, 2);
        break;
      default:
        WM_CHECK(false, "no array of this type");
    }
  }
}

Values decode(const std::byte* from, std::size_t count, DType dtype) {
  Values values(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (dtype == DType::fp32) {
      float single;
      std::memcpy(&single, from + i * 4, 4);
      values[i] = static_cast<double>(single);
    } else if (dtype == DType::int32) {
      std::int32_t whole;
      std::memcpy(&whole, from + i * 4, 4);
      values[i] = whole;
    } else {
      std::uint16_t half;
      std::memcpy(&half, from + i * 2, 2);
      values[i] = dtype == DType::bf16 ? from_bf16(half) : from_fp16(half);
    }
  }
  return values;
}

}  // namespace

Values normal(std::int64_t count, std::uint64_t seed, double deviation) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> distribution(0, deviation);
  Values values(static_cast<std::size_t>(count));
  for (double& value : values) value = distribution(engine);
  return values;
}

DeviceArray::DeviceArray(const Context& context, std::int64_t count, DType dtype)
    : context_(context), tensor_(context, {count}, dtype) {
  tensor_.fill_bytes(0xFF, context.stream);
}

DeviceArray::DeviceArray(const Context& context, std::span<const double> values, DType dtype)
    : context_(context), tensor_(context, {static_cast<std::int64_t>(values.size())}, dtype) {
  std::vector<std::byte> host(tensor_.bytes());
  encode(values, dtype, host.data());
  copy_bytes(tensor_.data(), tensor_.device(), host.data(), Device::cpu(), host.size(), context.stream);
  synchronize(context.stream);
}

std::vector<std::byte> DeviceArray::bytes() const {
  std::vector<std::byte> host(tensor_.bytes());
  copy_bytes(host.data(), Device::cpu(), tensor_.data(), tensor_.device(), host.size(), context_.stream);
  synchronize(context_.stream);
  return host;
}

Values DeviceArray::values() const {
  return decode(bytes().data(), static_cast<std::size_t>(tensor_.elements()), tensor_.dtype());
}

Values stored(std::span<const double> values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * size_of(dtype));
  encode(values, dtype, bytes.data());
  return decode(bytes.data(), values.size(), dtype);
}

::testing::AssertionResult near(std::span<const double> actual, std::span<const double> expected, DType dtype,
                                double slack, double roundings) {
  if (actual.size() != expected.size()) return ::testing::AssertionFailure() << "sizes differ";
  double largest = 0;
  for (const double value : expected) largest = std::max(largest, std::abs(value));
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double error = std::abs(actual[i] - expected[i]);
    const double bound = unit_roundoff(dtype) * roundings * std::abs(expected[i]) + slack * largest;
    if (!(error <= bound)) {
      return ::testing::AssertionFailure() << "element " << i << " is " << actual[i] << ", expected " << expected[i]
                                           << ": error " << error << " above " << bound << " (" << name(dtype) << ")";
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace warpmeter::layers::testing
