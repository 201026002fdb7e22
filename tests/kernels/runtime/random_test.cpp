#include "kernels/runtime/random.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/runtime/check.hpp"
#include "kernels/runtime/detail/random_fill.hpp"
#include "kernels/runtime/parallel.hpp"
#include "kernels/runtime/random_philox.hpp"

namespace warpmeter {
namespace {

using detail::RandomFill;

std::vector<CpuIsa> levels() {
  std::vector<CpuIsa> all;
  for (const CpuIsa isa : {CpuIsa::generic, CpuIsa::avx2, CpuIsa::avx512}) {
    if (isa <= machine_cpu_isa()) all.push_back(isa);
  }
  return all;
}

/// One fill of every kind and type.
std::vector<RandomFill> all_fills(std::uint64_t seed, std::uint64_t stream_id) {
  return {
      detail::normal_fill(DType::fp32, seed, stream_id, 1.0f),
      detail::normal_fill(DType::tf32, seed, stream_id, 0.02f),
      detail::normal_fill(DType::bf16, seed, stream_id, 1.0f),
      detail::normal_fill(DType::fp16, seed, stream_id, 3.0f),
      detail::uniform_fill(DType::fp32, seed, stream_id, -1.0f, 1.0f),
      detail::uniform_fill(DType::bf16, seed, stream_id, 0.0f, 1.0f),
      detail::uniform_fill(DType::fp16, seed, stream_id, -2.0f, 5.0f),
      detail::integers_fill(DType::int32, seed, stream_id, 10000),
      detail::integers_fill(DType::int64, seed, stream_id, std::int64_t{1} << 40),
  };
}

std::vector<unsigned char> serial(CpuIsa isa, const RandomFill& fill, std::uint64_t first, std::int64_t count) {
  std::vector<unsigned char> bytes(static_cast<std::size_t>(count) * size_of(fill.dtype));
  detail::random_fill_serial(isa, bytes.data(), first, count, fill);
  return bytes;
}

template <class T>
std::vector<T> values(const RandomFill& fill, std::int64_t count, std::uint64_t first = 0) {
  EXPECT_EQ(sizeof(T), size_of(fill.dtype));
  std::vector<T> out(static_cast<std::size_t>(count));
  detail::random_fill_cpu(out.data(), first, count, fill);
  return out;
}

double half_to_double(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const double fraction = bits & 1023;
  const double magnitude = exponent == 0    ? std::ldexp(fraction, -24)
                           : exponent == 31 ? std::numeric_limits<double>::infinity()
                                            : std::ldexp(fraction + 1024, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

double bfloat_to_double(std::uint16_t bits) {
  return philox::from_bits(static_cast<std::uint32_t>(bits) << 16);
}

// Source: Random123 1.14, tests/kat_vectors, lines "philox4x32 10".
TEST(Philox, PublishedVectors) {
  const struct {
    philox::Words counter;
    std::uint32_t k0, k1;
    philox::Words expected;
  } vectors[] = {
      {{0, 0, 0, 0}, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
       0xffffffff,
       0xffffffff,
       {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
       0xa4093822,
       0x299f31d0,
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (const auto& v : vectors) {
    const philox::Words out = philox::philox4x32_10(v.counter, v.k0, v.k1);
    EXPECT_EQ(out.x0, v.expected.x0);
    EXPECT_EQ(out.x1, v.expected.x1);
    EXPECT_EQ(out.x2, v.expected.x2);
    EXPECT_EQ(out.x3, v.expected.x3);
  }
}

// The third vector through the fill: which of seed, stream and element goes where.
TEST(RandomFill, ElementsComeFromThePublishedWords) {
  const std::uint64_t seed = 0x299f31d0a4093822;
  const std::uint64_t stream_id = 0x0370734413198a2e;
  const std::uint64_t block = 0x05a308d3243f6a88;  // as published but for the top bits: 4 * block must fit 64 bits
  const philox::Words w =
      philox::philox4x32_10({0x243f6a88, 0x05a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0);
  const auto uniform = values<float>(detail::uniform_fill(DType::fp32, seed, stream_id, 0.0f, 1.0f), 4, 4 * block);
  const std::uint32_t words[] = {w.x0, w.x1, w.x2, w.x3};
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(uniform[i], static_cast<float>(words[i] >> 8) * 0x1p-24f);

  const auto zero = values<float>(detail::uniform_fill(DType::fp32, 0, 0, 0.0f, 1.0f), 4);
  EXPECT_EQ(zero[0], static_cast<float>(0x6627e8) * 0x1p-24f);
  EXPECT_EQ(zero[3], static_cast<float>(0x9b00db) * 0x1p-24f);
}

TEST(RandomFill, NormalValuesAreBoxMullersWithinRounding) {
  const std::int64_t count = 1 << 18;
  const auto filled = values<float>(detail::normal_fill(DType::fp32, 11, 3, 1.0f), count);
  double worst = 0;
  for (std::int64_t i = 0; i < count; i += 2) {
    const philox::Words w = philox::block_words(11, 3, static_cast<std::uint64_t>(i) / 4);
    const double radius_word = i % 4 == 0 ? w.x0 : w.x2;
    const double angle_word = i % 4 == 0 ? w.x1 : w.x3;
    const double radius = std::sqrt(-2 * std::log((radius_word + 0.5) * 0x1p-32));
    const double angle = 2 * M_PI * angle_word * 0x1p-32;
    const auto at = static_cast<std::size_t>(i);
    worst = std::max({worst, std::fabs(filled[at] - radius * std::cos(angle)),
                      std::fabs(filled[at + 1] - radius * std::sin(angle))});
  }
  // Near word 2^32 the logarithm's argument rounds by 2^-25 and the radius is the root of twice that: up to 2.5e-4
  // where the radius itself is that small. Elsewhere a few units of 2^-23 at 6.
  EXPECT_LT(worst, 3e-4);
  EXPECT_GT(worst, 0.0);
}

TEST(Philox, LogarithmSineAndCosineWithinAnUlp) {
  double log_error = 0, sin_error = 0;
  for (std::uint32_t i = 0; i < 2000000; ++i) {
    const std::uint32_t word = i * 2654435761U;
    const float x = philox::unit_open(word);
    const double exact = std::log(static_cast<double>(x));
    if (exact != 0) {
      const double ulp = std::ldexp(1.0, std::ilogb(exact) - 23);
      log_error = std::max(log_error, std::fabs(philox::log_positive(x) - exact) / ulp);
    }
    const philox::SinCos direction = philox::sin_cos_turn(word);
    const double angle = 2 * M_PI * word * 0x1p-32;
    sin_error =
        std::max({sin_error, std::fabs(direction.sin - std::sin(angle)), std::fabs(direction.cos - std::cos(angle))});
  }
  EXPECT_LT(log_error, 1.0);
  EXPECT_LT(sin_error, 0x1p-23);
  EXPECT_EQ(philox::log_positive(1.0f), 0.0f);
  EXPECT_EQ(philox::unit_open(0xFFFFFFFFU), 1.0f);
  EXPECT_EQ(philox::unit_open(0), 0x1p-33f);
}

TEST(Philox, SixteenBitRoundingIsToNearestEven) {
  // Every value of both types, and the points a quarter, half and three quarters of the way to the next one.
  for (std::uint32_t bits = 0; bits < 0x7C00; ++bits) {
    const double here = half_to_double(static_cast<std::uint16_t>(bits));
    const double next = bits == 0x7BFF ? 65536.0 : half_to_double(static_cast<std::uint16_t>(bits + 1));
    for (int quarter = 0; quarter < 4; ++quarter) {
      const auto value = static_cast<float>(here + (next - here) * quarter / 4);
      const std::uint32_t up = quarter == 3 || (quarter == 2 && bits % 2 == 1) ? 1 : 0;
      ASSERT_EQ(philox::to_fp16(value), bits + up) << value;
      ASSERT_EQ(philox::to_fp16(-value), 0x8000 + bits + up) << -value;
    }
  }
  EXPECT_EQ(philox::to_fp16(1e30f), 0x7C00);
  EXPECT_EQ(philox::to_fp16(-std::numeric_limits<float>::infinity()), 0xFC00);
  for (std::uint32_t bits = 0; bits < 0x7F7F; ++bits) {
    for (std::uint32_t quarter = 0; quarter < 4; ++quarter) {
      const float value = philox::from_bits((bits << 16) + (quarter << 14));
      const std::uint32_t up = quarter == 3 || (quarter == 2 && bits % 2 == 1) ? 1 : 0;
      ASSERT_EQ(philox::to_bf16(value), bits + up);
      ASSERT_EQ(philox::to_bf16(-value), 0x8000 + bits + up);
    }
  }
}

TEST(RandomFill, EveryInstructionSetGivesTheSameBits) {
  if (levels().size() == 1) GTEST_SKIP() << "this machine runs the generic code only";
  for (const RandomFill& fill : all_fills(0x123456789abcdef, 42)) {
    const auto expected = serial(CpuIsa::generic, fill, 5, 100003);
    for (const CpuIsa isa : levels()) {
      EXPECT_EQ(serial(isa, fill, 5, 100003), expected) << name(isa) << " " << name(fill.dtype);
    }
  }
}

TEST(RandomFill, PiecesAreThoseOfTheWhole) {
  for (const RandomFill& fill : all_fills(1, 2)) {
    const std::size_t element = size_of(fill.dtype);
    for (const CpuIsa isa : levels()) {
      const auto whole = serial(isa, fill, 0, 1000);
      for (const std::uint64_t first : {0, 1, 2, 3, 4, 31, 63, 64, 65, 500, 999}) {
        for (const std::int64_t count : {1, 2, 3, 5, 63, 64, 130, 500}) {
          if (first + static_cast<std::uint64_t>(count) > 1000) continue;
          const auto piece = serial(isa, fill, first, count);
          ASSERT_EQ(std::memcmp(piece.data(), whole.data() + first * element, piece.size()), 0)
              << name(isa) << " " << name(fill.dtype) << " " << first << " " << count;
        }
      }
    }
  }
}

TEST(RandomFill, AnyNumberOfThreadsGivesTheSameBits) {
  const int before = num_threads();
  for (const RandomFill& fill : all_fills(9, 8)) {
    std::vector<unsigned char> expected;
    for (const int threads : {1, 2, 3, 8}) {
      set_num_threads(threads);
      std::vector<unsigned char> bytes(300001 * size_of(fill.dtype));
      detail::random_fill_cpu(bytes.data(), 0, 300001, fill);
      if (expected.empty()) expected = bytes;
      EXPECT_EQ(bytes, expected) << threads;
    }
  }
  set_num_threads(before);
}

// Elements behind the 2^32nd, and blocks behind theirs, without the memory before them.
TEST(RandomFill, CountersAre64Bits) {
  for (const std::uint64_t first : {(std::uint64_t{1} << 32) - 70, (std::uint64_t{1} << 34) - 70,
                                    (std::uint64_t{1} << 40) + 12345, (std::uint64_t{1} << 62) + 7}) {
    const RandomFill fill = detail::uniform_fill(DType::fp32, 77, 5, 0.0f, 1.0f);
    for (const CpuIsa isa : levels()) {
      const auto bytes = serial(isa, fill, first, 200);
      for (std::uint64_t i = 0; i < 200; ++i) {
        const std::uint64_t element = first + i;
        const philox::Words w = philox::philox4x32_10(
            {static_cast<std::uint32_t>(element / 4), static_cast<std::uint32_t>((element / 4) >> 32), 5, 0}, 77, 0);
        const std::uint32_t words[] = {w.x0, w.x1, w.x2, w.x3};
        float value = 0;
        std::memcpy(&value, bytes.data() + i * sizeof(float), sizeof(float));
        ASSERT_EQ(value, static_cast<float>(words[element % 4] >> 8) * 0x1p-24f) << element;
      }
    }
  }
}

TEST(RandomFill, SeedsAndStreamsDiffer) {
  const auto base = values<float>(detail::normal_fill(DType::fp32, 1, 1, 1.0f), 1000);
  for (const auto& [seed, stream_id] : {std::pair<std::uint64_t, std::uint64_t>{2, 1},
                                        {1, 2},
                                        {1 + (std::uint64_t{1} << 32), 1},
                                        {1, 1 + (std::uint64_t{1} << 32)}}) {
    const auto other = values<float>(detail::normal_fill(DType::fp32, seed, stream_id, 1.0f), 1000);
    int equal = 0;
    for (std::size_t i = 0; i < base.size(); ++i) equal += base[i] == other[i] ? 1 : 0;
    EXPECT_LT(equal, 3) << seed << " " << stream_id;
  }
}

/// Largest distance between the sample's distribution function and `cdf`.
template <class Cdf>
double kolmogorov_smirnov(std::vector<double> sample, Cdf cdf) {
  std::sort(sample.begin(), sample.end());
  const auto n = static_cast<double>(sample.size());
  double worst = 0;
  for (std::size_t i = 0; i < sample.size(); ++i) {
    const double p = cdf(sample[i]);
    worst = std::max({worst, p - static_cast<double>(i) / n, static_cast<double>(i + 1) / n - p});
  }
  return worst;
}

/// The 1e-4 quantile of the Kolmogorov-Smirnov statistic: the draw is fixed, so a failure is a defect.
double ks_bound(double n) {
  return 2.226 / std::sqrt(n);
}

TEST(RandomStatistics, NormalMoments) {
  const std::int64_t count = 4000000;
  const auto filled = values<float>(detail::normal_fill(DType::fp32, 2024, 1, 1.0f), count);
  double m1 = 0, m2 = 0, m3 = 0, m4 = 0, lag = 0;
  std::int64_t beyond3 = 0;
  for (std::size_t i = 0; i < filled.size(); ++i) {
    const double x = filled[i];
    ASSERT_TRUE(std::isfinite(x));
    m1 += x;
    m2 += x * x;
    m3 += x * x * x;
    m4 += x * x * x * x;
    if (i > 0) lag += x * filled[i - 1];
    if (std::fabs(x) > 3) ++beyond3;
  }
  const auto n = static_cast<double>(count);
  // Four standard errors of each moment.
  EXPECT_NEAR(m1 / n, 0, 4 / std::sqrt(n));
  EXPECT_NEAR(m2 / n, 1, 4 * std::sqrt(2 / n));
  EXPECT_NEAR(m3 / n, 0, 4 * std::sqrt(15 / n));
  EXPECT_NEAR(m4 / n, 3, 4 * std::sqrt(96 / n));
  EXPECT_NEAR(lag / n, 0, 4 / std::sqrt(n));
  const double p3 = std::erfc(3 / std::sqrt(2.0));
  EXPECT_NEAR(static_cast<double>(beyond3) / n, p3, 4 * std::sqrt(p3 / n));
}

TEST(RandomStatistics, NormalDistributionFunction) {
  const auto filled = values<float>(detail::normal_fill(DType::fp32, 5, 0, 2.0f), 1000000);
  const double d = kolmogorov_smirnov({filled.begin(), filled.end()},
                                      [](double x) { return 0.5 * std::erfc(-x / 2.0 / std::sqrt(2.0)); });
  EXPECT_LT(d, ks_bound(1e6));
}

TEST(RandomStatistics, UniformDistributionFunctionAndRange) {
  const auto filled = values<float>(detail::uniform_fill(DType::fp32, 6, 0, -3.0f, 5.0f), 1000000);
  for (const float x : filled) {
    ASSERT_GE(x, -3.0f);
    ASSERT_LT(x, 5.0f);
  }
  EXPECT_LT(kolmogorov_smirnov({filled.begin(), filled.end()}, [](double x) { return (x + 3) / 8; }), ks_bound(1e6));
}

TEST(RandomStatistics, StreamsAreIndependent) {
  const std::int64_t count = 1000000;
  const auto a = values<float>(detail::normal_fill(DType::fp32, 3, 0, 1.0f), count);
  const auto b = values<float>(detail::normal_fill(DType::fp32, 3, 1, 1.0f), count);
  double product = 0;
  for (std::size_t i = 0; i < a.size(); ++i) product += static_cast<double>(a[i]) * b[i];
  EXPECT_NEAR(product / static_cast<double>(count), 0, 4 / std::sqrt(static_cast<double>(count)));
}

TEST(RandomFill, SixteenBitTypesRoundTheFp32Values) {
  const std::int64_t count = 100000;
  const auto exact = values<float>(detail::normal_fill(DType::fp32, 4, 4, 0.7f), count);
  const auto bf16 = values<std::uint16_t>(detail::normal_fill(DType::bf16, 4, 4, 0.7f), count);
  const auto fp16 = values<std::uint16_t>(detail::normal_fill(DType::fp16, 4, 4, 0.7f), count);
  for (std::size_t i = 0; i < exact.size(); ++i) {
    ASSERT_EQ(bf16[i], philox::to_bf16(exact[i]));
    ASSERT_EQ(fp16[i], philox::to_fp16(exact[i]));
    ASSERT_NEAR(bfloat_to_double(bf16[i]), exact[i], std::fabs(exact[i]) * 0x1p-8);
    ASSERT_NEAR(half_to_double(fp16[i]), exact[i], std::fabs(exact[i]) * 0x1p-11 + 0x1p-25);
  }
  EXPECT_EQ(values<float>(detail::normal_fill(DType::tf32, 4, 4, 0.7f), count), exact);
}

TEST(RandomFill, UniformKeepsItsIntervalInEveryType) {
  const struct {
    float low, high;
  } intervals[] = {{0.0f, 1.0f},       {-1.0f, 1.0f}, {1.0f, 1.0625f}, {-0.3f, 0.3f},
                   {1000.0f, 1016.0f}, {0.0f, 1e-6f}, {-7.1f, -6.9f},  {0.333f, 0.334f}};
  for (const auto& [low, high] : intervals) {
    const auto fp32 = values<float>(detail::uniform_fill(DType::fp32, 1, 1, low, high), 20000);
    for (const float x : fp32) ASSERT_TRUE(x >= low && x < high) << x << " of " << low << " " << high;
    const auto fp16 = values<std::uint16_t>(detail::uniform_fill(DType::fp16, 1, 1, low, high), 20000);
    for (const std::uint16_t x : fp16) {
      ASSERT_TRUE(half_to_double(x) >= low && half_to_double(x) < high)
          << half_to_double(x) << " " << low << " " << high;
    }
    const auto bf16 = values<std::uint16_t>(detail::uniform_fill(DType::bf16, 1, 1, low, high), 20000);
    for (const std::uint16_t x : bf16) {
      ASSERT_TRUE(bfloat_to_double(x) >= low && bfloat_to_double(x) < high) << bfloat_to_double(x);
    }
  }
  // The narrowest interval: one value.
  const float next = std::nextafter(1.0f, 2.0f);
  for (const float x : values<float>(detail::uniform_fill(DType::fp32, 1, 1, 1.0f, next), 1000)) ASSERT_EQ(x, 1.0f);
  EXPECT_THROW(static_cast<void>(detail::uniform_fill(DType::bf16, 1, 1, 1.001f, 1.002f)), CheckError)
      << "no bf16 value lies in it";
}

TEST(RandomFill, Integers) {
  const std::int64_t count = 100000;
  std::vector<int> seen(10);
  for (const std::int32_t x : values<std::int32_t>(detail::integers_fill(DType::int32, 1, 0, 10), count)) {
    ASSERT_GE(x, 0);
    ASSERT_LT(x, 10);
    ++seen[static_cast<std::size_t>(x)];
  }
  double chi2 = 0;
  for (const int n : seen) chi2 += (n - 1e4) * (n - 1e4) / 1e4;
  EXPECT_LT(chi2, 33.7) << "9 degrees of freedom, 1e-4";
  for (const std::int32_t x : values<std::int32_t>(detail::integers_fill(DType::int32, 1, 0, 1), 1000)) ASSERT_EQ(x, 0);

  const std::int64_t largest = std::numeric_limits<std::int64_t>::max();
  double mean = 0;
  for (const std::int64_t x : values<std::int64_t>(detail::integers_fill(DType::int64, 1, 0, largest), count)) {
    ASSERT_GE(x, 0);
    ASSERT_LT(x, largest);
    mean += static_cast<double>(x) / 0x1p63 / static_cast<double>(count);
  }
  EXPECT_NEAR(mean, 0.5, 4 / std::sqrt(12.0 * static_cast<double>(count)));
  for (const std::int32_t x :
       values<std::int32_t>(detail::integers_fill(DType::int32, 1, 0, std::int64_t{1} << 31), 1000)) {
    ASSERT_GE(x, 0);
  }
  // Both types hold the same numbers.
  const auto wide = values<std::int64_t>(detail::integers_fill(DType::int64, 3, 2, 12345), 999);
  const auto narrow = values<std::int32_t>(detail::integers_fill(DType::int32, 3, 2, 12345), 999);
  for (std::size_t i = 0; i < wide.size(); ++i) ASSERT_EQ(wide[i], narrow[i]);
}

TEST(RandomFill, RefusesWhatMakesNoSense) {
  EXPECT_THROW(static_cast<void>(detail::normal_fill(DType::int32, 0, 0, 1.0f)), CheckError);
  EXPECT_THROW(static_cast<void>(detail::normal_fill(DType::fp64, 0, 0, 1.0f)), CheckError);
  EXPECT_THROW(static_cast<void>(detail::normal_fill(DType::fp32, 0, 0, -1.0f)), CheckError);
  EXPECT_THROW(static_cast<void>(detail::normal_fill(DType::fp32, 0, 0, NAN)), CheckError);
  EXPECT_THROW(static_cast<void>(detail::uniform_fill(DType::fp32, 0, 0, 1.0f, 1.0f)), CheckError);
  EXPECT_THROW(static_cast<void>(detail::uniform_fill(DType::fp32, 0, 0, 2.0f, 1.0f)), CheckError);
  EXPECT_THROW(static_cast<void>(detail::uniform_fill(DType::fp32, 0, 0, -3e38f, 3e38f)), CheckError);
  EXPECT_THROW(static_cast<void>(detail::integers_fill(DType::fp32, 0, 0, 3)), CheckError);
  EXPECT_THROW(static_cast<void>(detail::integers_fill(DType::int64, 0, 0, 0)), CheckError);
  EXPECT_THROW(static_cast<void>(detail::integers_fill(DType::int32, 0, 0, (std::int64_t{1} << 31) + 1)), CheckError);
}

TEST(Random, FillsTensors) {
  CachingAllocator allocator(Device::cpu());
  const Context context{{Device::cpu(), nullptr}, &allocator};
  const Tensor floats(context, {3, 1000}, DType::fp32);
  floats.fill_bytes(0xFF, context.stream);
  fill_normal(floats, 5, 6, context.stream, 2.0f);
  const auto expected = values<float>(detail::normal_fill(DType::fp32, 5, 6, 2.0f), 3000);
  EXPECT_EQ(std::memcmp(floats.data(), expected.data(), floats.bytes()), 0);
  fill_normal(floats, 5, 6, context.stream, 0.0f);
  for (int i = 0; i < 3000; ++i) ASSERT_EQ(floats.data_as<float>()[i], 0.0f);
  fill_uniform(floats, 5, 6, context.stream, 2.0f, 3.0f);
  EXPECT_GE(floats.data_as<float>()[2999], 2.0f);
  const Tensor integers(context, {77}, DType::int64);
  fill_integers(integers, 1, 1, context.stream, 9);
  EXPECT_LT(integers.data_as<std::int64_t>()[76], 9);
  EXPECT_NO_THROW(fill_normal(Tensor(context, {0}, DType::fp32), 1, 1, context.stream));
  EXPECT_THROW(fill_normal(Tensor(), 1, 1, context.stream), CheckError);
  EXPECT_THROW(fill_normal(floats, 1, 1, StreamView{Device::cuda(0), nullptr}), CheckError);
}

}  // namespace
}  // namespace warpmeter
