// The check of the primer's kernels: what is right passes, what is wrong does not.
#include "kernels/primer/verify.hpp"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "kernels/primer/registry.hpp"

namespace warpmeter::primer {
namespace {

struct Sum {
  Problem problem{.rows = 50, .cols = 40};
  std::vector<float> x = std::vector<float>(2000), y = std::vector<float>(2000);

  Sum() {
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = static_cast<float>(i % 91) - 45.0f;
      y[i] = x[i] + 10.0f;
    }
  }
  [[nodiscard]] CheckReport report(double most_steps = 1e8) const {
    return check(*find_kernel("add"), problem, {{x.data(), DType::fp32}}, {{y.data(), DType::fp32}}, most_steps);
  }
};

TEST(Check, PassesWhatIsRight) {
  const CheckReport report = Sum().report();
  EXPECT_EQ(report.failure, "");
  EXPECT_EQ(report.max_rel_error, 0.0);
  EXPECT_FALSE(report.sampled);
}

TEST(Check, FindsOneWrongElementAndNamesIt) {
  Sum sum;
  sum.y[7 * 40 + 3] += 0.01f;
  const CheckReport report = sum.report();
  EXPECT_NE(report.failure.find("y[7,3]"), std::string::npos) << report.failure;
  EXPECT_GT(report.max_rel_error, 1e-5);
}

TEST(Check, LeavesAnErrorBelowTheBound) {
  Sum sum;
  sum.y[5] += 5e-6f * 55.0f;
  const CheckReport report = sum.report();
  EXPECT_EQ(report.failure, "");
  EXPECT_NEAR(report.max_rel_error, 5e-6, 1e-6);
}

TEST(Check, FindsNanAndInfinityEvenWhereItOnlySamples) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (std::size_t i = 0; i < 2000; i += 37) {
      Sum sum;
      sum.y[i] = bad;
      const CheckReport report = sum.report(100);
      EXPECT_NE(report.failure, "") << i;
    }
  }
}

TEST(Check, SamplesTheFirstAndTheLastAndSaysSo) {
  for (const std::size_t i : {std::size_t{0}, std::size_t{1999}}) {
    Sum sum;
    sum.y[i] += 1.0f;
    const CheckReport report = sum.report(100);
    EXPECT_TRUE(report.sampled);
    EXPECT_NE(report.failure, "") << i;
  }
  // A tenth that is wrong cannot hide from a sample of a twentieth.
  Sum sum;
  for (std::size_t i = 800; i < 1000; ++i) sum.y[i] += 1.0f;
  EXPECT_NE(sum.report(100).failure, "");
}

TEST(Check, SixteenBitsMayRoundOnce) {
  const Problem p{.dtype = DType::bf16, .rows = 1, .cols = 1};
  const std::uint16_t one = 0x3F80;
  const auto report = [&](std::uint16_t y) {
    return check(*find_kernel("add"), p, {{&one, DType::bf16}}, {{&y, DType::bf16}}).failure;
  };
  EXPECT_EQ(report(0x4130), "");  // 11 exactly
  EXPECT_NE(report(0x4131), "");  // the next bf16
}

TEST(HostTensor, ReadsEveryType) {
  const float fp32[] = {1.5f, -2.0f};
  EXPECT_EQ(HostTensor(fp32, DType::fp32)[1], -2.0);
  const std::uint16_t bf16[] = {0x3FC0, 0xC000};
  EXPECT_EQ(HostTensor(bf16, DType::bf16)[0], 1.5);
  EXPECT_EQ(HostTensor(bf16, DType::bf16)[1], -2.0);
  const std::uint16_t fp16[] = {0x3E00, 0xC000, 0x0001, 0x7C00, 0x7BFF};
  EXPECT_EQ(HostTensor(fp16, DType::fp16)[0], 1.5);
  EXPECT_EQ(HostTensor(fp16, DType::fp16)[1], -2.0);
  EXPECT_EQ(HostTensor(fp16, DType::fp16)[2], 0x1p-24);
  EXPECT_TRUE(std::isinf(HostTensor(fp16, DType::fp16)[3]));
  EXPECT_EQ(HostTensor(fp16, DType::fp16)[4], 65504.0);
  const std::uint32_t words[] = {0x87654321u, 0x0FEDCBA9u};
  for (int i = 0; i < 15; ++i) EXPECT_EQ(HostTensor(words, DType::int32).nibble(i), i + 1) << i;
}

}  // namespace
}  // namespace warpmeter::primer
