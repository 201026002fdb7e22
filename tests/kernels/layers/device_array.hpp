#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/runtime/tensor.hpp"

/// Arrays that a test fills and reads as fp64, stored in any type on any device.
namespace warpmeter::layers::testing {

using Values = std::vector<double>;

/// `count` normal values of the test's own random source.
[[nodiscard]] Values normal(std::int64_t count, std::uint64_t seed, double deviation = 1.0);

class DeviceArray {
 public:
  /// NaN everywhere.
  DeviceArray(const Context& context, std::int64_t count, DType dtype);
  /// `values` rounded to dtype. int32 and fp32 and the 16-bit types.
  DeviceArray(const Context& context, std::span<const double> values, DType dtype);

  [[nodiscard]] Values values() const;
  [[nodiscard]] std::vector<std::byte> bytes() const;
  [[nodiscard]] void* data() const { return tensor_.data(); }
  template <class T>
  [[nodiscard]] T* as() const {
    return static_cast<T*>(tensor_.data());
  }

 private:
  Context context_;
  Tensor tensor_;
};

/// Values as they are after a round trip through dtype.
[[nodiscard]] Values stored(std::span<const double> values, DType dtype);

/// |actual - expected| <= roundoff(dtype) * |expected| * roundings + slack * max|expected| for every element; NaN
/// fails.
[[nodiscard]] ::testing::AssertionResult near(std::span<const double> actual, std::span<const double> expected,
                                              DType dtype, double slack = 2e-6, double roundings = 1.01);

/// A host context with an allocator of its own.
class HostContext {
 public:
  HostContext() : allocator_(Device::cpu()) {}
  [[nodiscard]] Context context() { return {{Device::cpu(), nullptr}, &allocator_}; }

 private:
  CachingAllocator allocator_;
};

}  // namespace warpmeter::layers::testing
