#include "kernels/collectives/detail/reduce.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/kernels/collectives/values.hpp"

namespace warpmeter::collectives {
namespace {

constexpr DType kTypes[] = {DType::fp32, DType::bf16, DType::fp16, DType::int32};
constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::avg, ReduceOp::max, ReduceOp::min};

template <class T>
std::vector<T> reduced(DType dtype, ReduceOp op, const std::vector<std::vector<T>>& inputs) {
  std::vector<const char*> sources;
  for (const auto& input : inputs) sources.push_back(reinterpret_cast<const char*>(input.data()));
  std::vector<T> output(inputs[0].size());
  char* destination = reinterpret_cast<char*>(output.data());
  detail::reduce({sources.data(), static_cast<int>(sources.size()), &destination, 1,
                  static_cast<std::int64_t>(output.size()), dtype, op});
  return output;
}

TEST(Reduce, AgreesWithFp64AtEveryLengthAndAddress) {
  for (const DType dtype : kTypes) {
    const std::size_t element = size_of(dtype);
    for (const ReduceOp op : kOps) {
      for (const int ranks : {1, 2, 3, 8}) {
        for (const std::int64_t count : {0, 1, 3, 15, 16, 17, 63, 64, 65, 131, 1000}) {
          for (const std::size_t shift : {0, 1}) {  // an address that no element has
            std::vector<std::vector<char>> inputs;
            std::vector<const char*> sources;
            const std::size_t bytes = static_cast<std::size_t>(count) * element;
            for (int r = 0; r < ranks; ++r) {
              inputs.emplace_back(bytes + shift);
              for (std::int64_t i = 0; i < count; ++i) {
                values::write_random(dtype, inputs.back().data() + shift, i, static_cast<std::uint64_t>(r));
              }
            }
            for (const auto& input : inputs) sources.push_back(input.data() + shift);
            std::vector<char> first(bytes + shift + 1, 'x'), second(bytes + shift + 1, 'x');
            char* destinations[] = {first.data() + shift, second.data() + shift};
            detail::reduce({sources.data(), ranks, destinations, 2, count, dtype, op});
            ASSERT_EQ(first.back(), 'x') << "nothing is written past the end";
            ASSERT_EQ(first, second);
            for (const int streamed : {1, 2}) {  // the same past the cache
              std::vector<char> third(bytes + shift + 1, 'x'), fourth(bytes + shift + 1, 'x');
              char* others[] = {third.data() + shift, fourth.data() + shift};
              detail::reduce({sources.data(), ranks, others, 2, count, dtype, op, streamed});
              ASSERT_EQ(third, first) << count << " streamed to " << streamed;
              ASSERT_EQ(fourth, first);
            }
            for (std::int64_t i = 0; i < count; ++i) {
              std::vector<double> elements;
              for (const char* source : sources) elements.push_back(values::read(dtype, source, i));
              const values::Expected want = values::expected(dtype, op, elements);
              ASSERT_NEAR(values::read(dtype, destinations[0], i), want.value, want.tolerance)
                  << name(dtype) << " " << name(op) << ", " << ranks << " ranks, element " << i << " of " << count;
            }
          }
        }
      }
    }
  }
}

// Sources that are asked for ahead, at last past their end; to an array of its own, and in place.
TEST(Reduce, LargeSourcesAreAddedToTheLastElement) {
  constexpr std::size_t kCount = (std::size_t{5} << 18) + 5;
  std::vector<std::vector<float>> inputs(2, std::vector<float>(kCount));
  for (std::size_t i = 0; i < kCount; ++i) {
    inputs[0][i] = static_cast<float>(i % 8191) * 0.37F;
    inputs[1][i] = static_cast<float>(i % 509) - 100.1F;
  }
  const std::vector<float> whole = reduced(DType::fp32, ReduceOp::sum, inputs);
  for (std::size_t i = 0; i < kCount; ++i) ASSERT_EQ(whole[i], inputs[0][i] + inputs[1][i]) << i;
  const char* sources[] = {reinterpret_cast<const char*>(inputs[0].data()),
                           reinterpret_cast<const char*>(inputs[1].data())};
  char* destinations[] = {reinterpret_cast<char*>(inputs[0].data()), reinterpret_cast<char*>(inputs[1].data())};
  detail::reduce({sources, 2, destinations, 2, static_cast<std::int64_t>(kCount), DType::fp32, ReduceOp::sum});
  EXPECT_EQ(inputs[0], whole);
  EXPECT_EQ(inputs[1], whole);
}

TEST(Reduce, ACopyPastTheCacheIsACopy) {
  std::vector<char> source(3000);
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<char>(values::hash(5, i));
  for (const std::size_t from : {0, 1, 7}) {
    for (const std::size_t to : {0, 1, 4, 31, 63}) {
      for (const std::size_t bytes : {0, 1, 63, 64, 255, 256, 257, 1000, 2900}) {
        std::vector<char> destination(3000, 'x'), want(3000, 'x');
        std::copy_n(source.begin() + static_cast<std::ptrdiff_t>(from), bytes,
                    want.begin() + static_cast<std::ptrdiff_t>(to));
        detail::copy_streaming(destination.data() + to, source.data() + from, static_cast<std::int64_t>(bytes));
        ASSERT_EQ(destination, want) << from << " to " << to << ", " << bytes << " bytes";
      }
    }
  }
}

TEST(Reduce, SixteenBitAccumulatesInFp32) {
  // 256 + 1 is 256 in bf16, and a sum rounded at each step would stay there; in fp32 it reaches 264.
  std::vector<std::vector<std::uint16_t>> bf16(9, {0x3F80});        // 1
  bf16[0] = {0x4380};                                               // 256
  EXPECT_EQ(reduced(DType::bf16, ReduceOp::sum, bf16)[0], 0x4384);  // 264
  // 65504 + 65504 is over fp16's range, their mean is not.
  const std::vector<std::vector<std::uint16_t>> fp16 = {{0x7BFF}, {0x7BFF}};
  EXPECT_EQ(reduced(DType::fp16, ReduceOp::avg, fp16)[0], 0x7BFF);
  EXPECT_EQ(reduced(DType::fp16, ReduceOp::sum, fp16)[0], 0x7C00) << "infinity";
}

TEST(Reduce, SixteenBitTiesGoToEven) {
  // 1 + 2^-8 lies between bf16's 1 and 1 + 2^-7, 1 + 3 x 2^-8 between the next two.
  EXPECT_EQ(reduced<std::uint16_t>(DType::bf16, ReduceOp::sum, {{0x3F80}, {0x3B80}})[0], 0x3F80);
  EXPECT_EQ(reduced<std::uint16_t>(DType::bf16, ReduceOp::sum, {{0x3F81}, {0x3B80}})[0], 0x3F82);
  EXPECT_EQ(reduced<std::uint16_t>(DType::fp16, ReduceOp::sum, {{0x3C00}, {0x1000}})[0], 0x3C00);
  EXPECT_EQ(reduced<std::uint16_t>(DType::fp16, ReduceOp::sum, {{0x3C01}, {0x1000}})[0], 0x3C02);
}

TEST(Reduce, EveryFp16ValueSurvives) {
  std::vector<std::uint16_t> all;
  for (unsigned bits = 0; bits < 0x10000; ++bits) {
    if ((bits & 0x7C00U) != 0x7C00U || (bits & 0x3FFU) == 0) all.push_back(static_cast<std::uint16_t>(bits));
  }
  EXPECT_EQ(reduced<std::uint16_t>(DType::fp16, ReduceOp::sum, {all}), all);
}

TEST(Reduce, EveryBf16ValueSurvives) {
  std::vector<std::uint16_t> all;
  for (unsigned bits = 0; bits < 0x10000; ++bits) {
    if ((bits & 0x7F80U) != 0x7F80U || (bits & 0x7FU) == 0) all.push_back(static_cast<std::uint16_t>(bits));
  }
  EXPECT_EQ(reduced<std::uint16_t>(DType::bf16, ReduceOp::sum, {all}), all);
}

TEST(Reduce, NanWinsWhereverItIs) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const ReduceOp op : kOps) {
    for (int at = 0; at < 3; ++at) {
      std::vector<std::vector<float>> fp32(3, std::vector<float>(37, 1.0F));
      std::vector<std::vector<std::uint16_t>> bf16(3, std::vector<std::uint16_t>(37, 0x3F80));
      std::vector<std::vector<std::uint16_t>> fp16(3, std::vector<std::uint16_t>(37, 0x3C00));
      const auto rank = static_cast<std::size_t>(at);
      for (const std::size_t i : {std::size_t{5}, std::size_t{36}}) {
        fp32[rank][i] = nan;
        bf16[rank][i] = 0xFFFF;
        fp16[rank][i] = 0x7C01;
      }
      const auto a = reduced(DType::fp32, op, fp32);
      const auto b = reduced(DType::bf16, op, bf16);
      const auto c = reduced(DType::fp16, op, fp16);
      for (std::size_t i = 0; i < 37; ++i) {
        const bool want = i == 5 || i == 36;
        EXPECT_EQ(std::isnan(a[i]), want) << name(op) << " " << at << " " << i;
        EXPECT_EQ(std::isnan(values::read(DType::bf16, b.data(), static_cast<std::int64_t>(i))), want);
        EXPECT_EQ(std::isnan(values::read(DType::fp16, c.data(), static_cast<std::int64_t>(i))), want);
      }
    }
  }
}

TEST(Reduce, Int32WrapsAndAveragesTowardsZero) {
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min();
  const std::vector<std::vector<std::int32_t>> inputs = {{kMost, kLeast, -3, 3}, {1, -1, 0, 0}};
  EXPECT_EQ(reduced(DType::int32, ReduceOp::sum, inputs), (std::vector<std::int32_t>{kLeast, kMost, -3, 3}));
  EXPECT_EQ(reduced(DType::int32, ReduceOp::avg, inputs), (std::vector<std::int32_t>{1 << 30, -(1 << 30), -1, 1}));
  EXPECT_EQ(reduced(DType::int32, ReduceOp::max, inputs), (std::vector<std::int32_t>{kMost, -1, 0, 3}));
  EXPECT_EQ(reduced(DType::int32, ReduceOp::min, inputs), (std::vector<std::int32_t>{1, kLeast, -3, 0}));
}

}  // namespace
}  // namespace warpmeter::collectives
