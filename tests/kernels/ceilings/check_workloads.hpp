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

/// Every variant reads all of the source and writes all of the destination, with the source's lines in their order
/// where both have room, and those spread over the whole of the larger one.
inline void check_traffic(const Context& context, std::size_t read_bytes, std::size_t written_bytes) {
  constexpr std::size_t kLineWords = 16;
  constexpr std::uint32_t kPoison = 0xA5A5A5A5;
  constexpr std::size_t kTileLines = 1024;  // the most that any device copies at a stretch
  const auto lines_of = [](std::size_t bytes) { return (bytes + 63) / 64; };
  const std::size_t read_lines = lines_of(read_bytes), written_lines = lines_of(written_bytes);
  const auto work = make_traffic(context, read_bytes, written_bytes);
  EXPECT_EQ(work->read_bytes(), 64 * read_lines);
  EXPECT_EQ(work->written_bytes(), 64 * written_lines);
  EXPECT_EQ(work->amount(), static_cast<double>(64 * (read_lines + written_lines)));
  ASSERT_GE(work->variants(), 1);
  std::vector<std::uint32_t> source;
  if (read_lines > 0) source = to_host<std::uint32_t>(work->source(), read_lines * kLineWords, context.stream);
  const std::size_t larger = std::max(read_lines, written_lines), smaller = std::min(read_lines, written_lines);
  for (int variant = 0; variant < work->variants(); ++variant) {
    SCOPED_TRACE(work->variant_name(variant));
    std::vector<std::uint32_t> written;
    if (written_lines > 0) fill_bytes(work->destination(), context.device(), 0xA5, 64 * written_lines, context.stream);
    work->enqueue(variant);
    synchronize(context.stream);
    if (written_lines > 0)
      written = to_host<std::uint32_t>(work->destination(), written_lines * kLineWords, context.stream);

    const std::vector<std::uint32_t>& of_larger = written_lines >= read_lines ? written : source;
    const std::vector<std::uint32_t>& of_smaller = written_lines >= read_lines ? source : written;
    std::size_t copied = 0, untouched = 0, farthest = 0;
    std::uint32_t only_read = 0;
    for (std::size_t line = 0; line < larger; ++line) {
      const auto* const words = of_larger.data() + line * kLineWords;
      if (copied < smaller && std::equal(words, words + kLineWords, of_smaller.data() + copied * kLineWords)) {
        ++copied;
      } else {
        for (std::size_t i = 0; i < kLineWords; ++i) only_read += words[i];
        untouched += std::all_of(words, words + kLineWords, [](std::uint32_t word) { return word == kPoison; });
      }
      const auto even = static_cast<double>(line + 1) * static_cast<double>(smaller) / static_cast<double>(larger);
      farthest = std::max(farthest, static_cast<std::size_t>(std::abs(static_cast<double>(copied) - even)));
    }
    EXPECT_EQ(copied, smaller);
    EXPECT_EQ(untouched, 0u);
    EXPECT_LE(farthest, kTileLines);
    if (written_lines < read_lines) {
      EXPECT_EQ(work->checksum(), only_read);
    } else {
      EXPECT_EQ(work->checksum(), 0u);
    }
    if (written_lines > read_lines + 1) {
      EXPECT_FALSE(std::equal(written.end() - kLineWords, written.end(), written.end() - 2 * kLineWords));
    }
  }
}

/// Pairs of bytes read and written: none, a few, odd ones, parts of tiles and many tiles.
inline void check_traffic_of_many_mixes(const Context& context, std::size_t large) {
  const std::size_t sizes[] = {0, 1, 64, 1000, 65536, 70001, large / 3 + 5, large};
  for (const std::size_t read : sizes) {
    for (const std::size_t written : sizes) {
      if (read + written == 0) continue;
      SCOPED_TRACE(testing::Message() << read << " bytes read, " << written << " written");
      check_traffic(context, read, written);
    }
  }
}

}  // namespace warpmeter::ceilings
