#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/ceilings/bandwidth.hpp"
#include "kernels/ceilings/matmul.hpp"
#include "kernels/runtime/allocator.hpp"
#include "kernels/runtime/stream.hpp"

// What a ceiling's work must do, on any device. A ceiling of work that was not done would be too high.
namespace warpmeter::ceilings {

template <class T>
std::vector<T> to_host(const void* data, std::size_t elements, StreamView stream) {
  std::vector<T> host(elements);
  copy_bytes(host.data(), Device::cpu(), data, stream.device, elements * sizeof(T), stream);
  synchronize(stream);
  return host;
}

inline std::vector<double> matrix_to_host(const MatmulWorkload& work, const MatmulWorkload::Operand& operand,
                                          StreamView stream) {
  const auto n = static_cast<std::size_t>(work.n());
  std::vector<float> raw(n * n);
  if (work.storage() == DType::bf16) {
    const auto bits = to_host<std::uint16_t>(operand.data, n * n, stream);
    for (std::size_t i = 0; i < bits.size(); ++i) {
      const std::uint32_t wide = static_cast<std::uint32_t>(bits[i]) << 16;
      std::memcpy(&raw[i], &wide, sizeof(wide));
    }
  } else {
    raw = to_host<float>(operand.data, n * n, stream);
  }
  std::vector<double> matrix(n * n);
  for (std::size_t row = 0; row < n; ++row) {
    for (std::size_t column = 0; column < n; ++column) {
      matrix[row * n + column] = raw[row * static_cast<std::size_t>(operand.row_stride) +
                                     column * static_cast<std::size_t>(operand.column_stride)];
    }
  }
  return matrix;
}

/// Every variant's product against fp64, relative to the largest element; on random data of deviation 1.
inline void check_matmul(const Context& context, ComputePath path, std::int64_t size, double bound) {
  const auto work = make_matmul(context, path, size);
  const auto n = static_cast<std::size_t>(size);
  EXPECT_EQ(work->amount(), 2.0 * static_cast<double>(n * n * n));
  ASSERT_GE(work->variants(), 1);
  for (int variant = 0; variant < work->variants(); ++variant) {
    SCOPED_TRACE(work->variant_name(variant));
    const auto operands = work->operands(variant);
    fill_bytes(operands.c.data, context.device(), 0xFF, n * n * size_of(work->storage()), context.stream);  // NaN
    work->enqueue(variant);
    synchronize(context.stream);
    const auto a = matrix_to_host(*work, operands.a, context.stream);
    const auto b = matrix_to_host(*work, operands.b, context.stream);
    const auto c = matrix_to_host(*work, operands.c, context.stream);
    double largest = 0, error = 0, squares = 0;
    for (std::size_t row = 0; row < n; ++row) {
      for (std::size_t column = 0; column < n; ++column) {
        double expected = 0;
        for (std::size_t k = 0; k < n; ++k) expected += a[row * n + k] * b[k * n + column];
        const double difference = std::abs(c[row * n + column] - expected);
        error = difference > error || std::isnan(difference) ? difference : error;
        if (std::isnan(error)) break;
        largest = std::max(largest, std::abs(expected));
        squares += a[row * n + column] * a[row * n + column];
      }
    }
    EXPECT_LE(error, bound * largest);  // false for NaN
    EXPECT_NEAR(squares / static_cast<double>(n * n), 1.0, 0.1);
  }
}

inline void check_copy(const Context& context, std::size_t bytes) {
  const auto work = make_copy(context, bytes);
  EXPECT_EQ(work->bytes(), bytes);
  EXPECT_EQ(work->amount(), 2.0 * static_cast<double>(bytes));
  const auto expected = to_host<std::uint32_t>(work->source(), bytes / 4, context.stream);
  EXPECT_NE(expected.front(), expected.back());
  for (int variant = 0; variant < work->variants(); ++variant) {
    SCOPED_TRACE(work->variant_name(variant));
    fill_bytes(work->destination(), context.device(), 0xA5, bytes, context.stream);
    work->enqueue(variant);
    synchronize(context.stream);
    EXPECT_TRUE(to_host<std::uint32_t>(work->destination(), bytes / 4, context.stream) == expected);
  }
}

inline void check_read(const Context& context, std::size_t bytes) {
  const auto work = make_read(context, bytes);
  EXPECT_EQ(work->bytes(), bytes);
  EXPECT_EQ(work->amount(), static_cast<double>(bytes));
  std::uint32_t expected = 0;
  for (const std::uint32_t word : to_host<std::uint32_t>(work->source(), bytes / 4, context.stream)) expected += word;
  ASSERT_NE(expected, 0u);
  for (int variant = 0; variant < work->variants(); ++variant) {
    SCOPED_TRACE(work->variant_name(variant));
    work->enqueue(variant);
    EXPECT_EQ(work->checksum(), expected);
  }
}

}  // namespace warpmeter::ceilings
