#include "tools/allreduce_bench/pattern.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

namespace warpmeter::allreduce_bench {
namespace {

using collectives::CollectiveKind;
using collectives::ReduceOp;

Configuration configuration(CollectiveKind kind, DType dtype, ReduceOp op, int world_size, std::int64_t elements) {
  Configuration c;
  c.backend = collectives::find_backend("shm");
  c.kind = kind;
  c.dtype = dtype;
  c.op = op;
  c.world_size = world_size;
  c.bytes = static_cast<std::uint64_t>(elements) * size_of(dtype);
  return c;
}

std::vector<char> input(const Pattern& pattern, const Configuration& c, int rank, std::int64_t elements) {
  std::vector<char> data(static_cast<std::size_t>(elements) * size_of(c.dtype));
  pattern.write_input(rank, 0, elements, data.data());
  return data;
}

template <class T>
std::vector<T> as(const std::vector<char>& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

TEST(Pattern, TheSumIsWhatTheInputsAddUpTo) {
  constexpr std::int64_t kCount = 3 * Pattern::kPeriod + 17;
  const Configuration c = configuration(CollectiveKind::all_reduce, DType::fp32, ReduceOp::sum, 5, kCount);
  const Pattern pattern(c, 7);
  std::vector<float> sum(kCount);
  for (int r = 0; r < 5; ++r) {
    const auto values = as<float>(input(pattern, c, r, kCount));
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
  }
  EXPECT_EQ(pattern.compare_output(2, 0, kCount, reinterpret_cast<const char*>(sum.data())).wrong, 0);
  // A part of it is judged like the whole.
  EXPECT_EQ(pattern.compare_output(2, 70'001, 999, reinterpret_cast<const char*>(sum.data() + 70'001)).wrong, 0);

  sum[70'003] += 1;
  const auto difference = pattern.compare_output(2, 0, kCount, reinterpret_cast<const char*>(sum.data()));
  EXPECT_EQ(difference.wrong, 1);
  EXPECT_EQ(difference.first.find("element 70003: got "), 0U) << difference.first;
}

TEST(Pattern, ANaNAndSomethingPutElsewhereAreWrong) {
  constexpr std::int64_t kCount = 2 * Pattern::kPeriod;
  const Configuration c = configuration(CollectiveKind::broadcast, DType::fp32, ReduceOp::sum, 2, kCount);
  const Pattern pattern(c, 0);
  const std::vector<char> root = input(pattern, c, 0, kCount);
  EXPECT_EQ(pattern.compare_output(1, 0, kCount, root.data()).wrong, 0);

  std::vector<char> poisoned = root;
  std::memset(poisoned.data() + 400, 0xFF, 8);
  EXPECT_EQ(pattern.compare_output(1, 0, kCount, poisoned.data()).wrong, 2);

  // One element late, and a whole period late: nearly all are wrong.
  for (const std::int64_t late : {std::int64_t{1}, Pattern::kPeriod}) {
    std::vector<char> shifted = root;
    std::memcpy(shifted.data() + late * 4, root.data(), static_cast<std::size_t>(kCount - late) * 4);
    EXPECT_GT(pattern.compare_output(1, 0, kCount, shifted.data()).wrong, (kCount - late) * 9 / 10) << late;
  }
}

TEST(Pattern, EachRankAndSeedHasItsOwn) {
  const Configuration c = configuration(CollectiveKind::all_gather, DType::int32, ReduceOp::sum, 2, 2000);
  const Pattern pattern(c, 1);
  EXPECT_NE(input(pattern, c, 0, 1000), input(pattern, c, 1, 1000));
  EXPECT_NE(input(pattern, c, 0, 1000), input(Pattern(c, 2), c, 0, 1000));
  EXPECT_EQ(input(pattern, c, 0, 1000), input(Pattern(c, 1), c, 0, 1000));
}

TEST(Pattern, SumsAreExactInSixteenBits) {
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    for (const int world : {2, 8, 64}) {
      const Configuration c = configuration(CollectiveKind::all_reduce, dtype, ReduceOp::sum, world, 5000);
      const Pattern pattern(c, 3);
      // In bf16 at every step, as a ring does it.
      std::vector<float> sum(5000);
      for (int r = 0; r < world; ++r) {
        const auto bits = as<std::uint16_t>(input(pattern, c, r, 5000));
        for (std::size_t i = 0; i < sum.size(); ++i) {
          float value;
          if (dtype == DType::bf16) {
            const std::uint32_t wide = static_cast<std::uint32_t>(bits[i]) << 16;
            std::memcpy(&value, &wide, 4);
          } else {
            const std::uint32_t wide = (bits[i] & 0x7FFFU) == 0 ? 0 : ((bits[i] & 0x7FFFU) << 13) + 0x38000000U;
            std::memcpy(&value, &wide, 4);
            if ((bits[i] & 0x8000U) != 0) value = -value;
          }
          sum[i] += value;
          ASSERT_LE(std::abs(sum[i]), 256) << world;  // whole numbers that 8 bits hold
        }
      }
      std::vector<std::uint16_t> result(5000);
      for (std::size_t i = 0; i < sum.size(); ++i) {
        std::uint32_t bits;
        std::memcpy(&bits, &sum[i], 4);
        const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
        const std::uint32_t half = magnitude == 0 ? 0 : (magnitude - 0x38000000U) >> 13;
        result[i] = static_cast<std::uint16_t>(dtype == DType::bf16 ? bits >> 16 : half | ((bits >> 16) & 0x8000U));
      }
      EXPECT_EQ(pattern.compare_output(0, 0, 5000, reinterpret_cast<const char*>(result.data())).wrong, 0) << world;
    }
  }
}

TEST(Pattern, AnAverageMayRoundAndNoMore) {
  const Configuration c = configuration(CollectiveKind::all_reduce, DType::fp32, ReduceOp::avg, 3, 1000);
  const Pattern pattern(c, 0);
  std::vector<float> average(1000);
  for (int r = 0; r < 3; ++r) {
    const auto values = as<float>(input(pattern, c, r, 1000));
    for (std::size_t i = 0; i < average.size(); ++i) average[i] += values[i] / 3;
  }
  EXPECT_EQ(pattern.compare_output(0, 0, 1000, reinterpret_cast<const char*>(average.data())).wrong, 0);
  average[5] += 1e-3F;
  EXPECT_EQ(pattern.compare_output(0, 0, 1000, reinterpret_cast<const char*>(average.data())).wrong, 1);
}

TEST(Pattern, PartsOfReduceScatterAndAllGather) {
  const Configuration scatter = configuration(CollectiveKind::reduce_scatter, DType::int32, ReduceOp::max, 3, 300);
  const Pattern reduced(scatter, 0);
  std::vector<std::int32_t> largest(300, -1000);
  for (int r = 0; r < 3; ++r) {
    const auto values = as<std::int32_t>(input(reduced, scatter, r, 300));
    for (std::size_t i = 0; i < 300; ++i) largest[i] = std::max(largest[i], values[i]);
  }
  EXPECT_EQ(reduced.compare_output(1, 0, 100, reinterpret_cast<const char*>(largest.data() + 100)).wrong, 0);
  EXPECT_GT(reduced.compare_output(1, 0, 100, reinterpret_cast<const char*>(largest.data())).wrong, 80);

  const Configuration gather = configuration(CollectiveKind::all_gather, DType::int32, ReduceOp::sum, 3, 300);
  const Pattern gathered(gather, 0);
  std::vector<char> all;
  for (int r = 0; r < 3; ++r) {
    const std::vector<char> part = input(gathered, gather, r, 100);
    all.insert(all.end(), part.begin(), part.end());
  }
  EXPECT_EQ(gathered.compare_output(0, 0, 300, all.data()).wrong, 0);
  std::swap_ranges(all.begin(), all.begin() + 400, all.begin() + 400);  // ranks 0 and 1 exchanged
  EXPECT_GT(gathered.compare_output(0, 0, 300, all.data()).wrong, 160);
}

}  // namespace
}  // namespace warpmeter::allreduce_bench
