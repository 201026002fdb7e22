#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/runtime/cpu_isa.hpp"
#include "tests/kernels/runtime/isa_math_probe.hpp"

namespace warpmeter::isa_math_probe {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class Simd : public testing::TestWithParam<CpuIsa> {
 protected:
  void SetUp() override {
    if (GetParam() > machine_cpu_isa()) GTEST_SKIP() << "this machine has no " << name(GetParam());
#if defined(__x86_64__)
    if (GetParam() == CpuIsa::avx512) run_ = avx512::probe(), width_ = avx512::width();
    if (GetParam() == CpuIsa::avx2) run_ = avx2::probe(), width_ = avx2::width();
#endif
    if (GetParam() == CpuIsa::generic) run_ = generic::probe(), width_ = generic::width();
  }
  std::vector<float> of(Operation operation, const std::vector<float>& in) const {
    std::vector<float> out(in.size(), -7.0f);
    run_(operation, in.data(), out.data(), static_cast<std::int64_t>(in.size()));
    return out;
  }
  float one(Operation operation, float x) const {
    return of(operation, {x})[0];
  }
  /// Every 4093rd float of all there are.
  static std::vector<float> floats() {
    std::vector<float> all;
    for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 4093) {
      all.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
    }
    return all;
  }

  Runner run_ = nullptr;
  int width_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Isa, Simd, testing::Values(CpuIsa::generic, CpuIsa::avx2, CpuIsa::avx512),
                         [](const auto& test) { return std::string(name(test.param)); });

void compare(const std::vector<float>& x, const std::vector<float>& y, double (*function)(double)) {
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double right = function(double(x[i]));
    if (std::isnan(right)) {
      ASSERT_TRUE(std::isnan(y[i])) << x[i];
    } else if (right < double(std::numeric_limits<float>::min())) {
      ASSERT_EQ(y[i], 0.0f) << x[i];
    } else if (right > double(std::numeric_limits<float>::max())) {
      ASSERT_EQ(y[i], kInfinity) << x[i];
    } else {
      const double unit = std::ldexp(1.0, std::ilogb(right) - 23);
      worst = std::max(worst, std::fabs(double(y[i]) - right) / unit);
    }
  }
  EXPECT_LT(worst, 2.0) << "units in the last place";
}

TEST_P(Simd, ExponentialsOverAllMagnitudes) {
  const std::vector<float> x = floats();
  compare(x, of(Operation::exp, x), [](double v) { return std::exp(v); });
  compare(x, of(Operation::exp2, x), [](double v) { return std::exp2(v); });
  EXPECT_EQ(one(Operation::exp, 0.0f), 1.0f);
  EXPECT_EQ(one(Operation::exp, -kInfinity), 0.0f);
  EXPECT_EQ(one(Operation::exp, -1e4f), 0.0f);
  EXPECT_EQ(one(Operation::exp, kInfinity), kInfinity);
  EXPECT_EQ(one(Operation::exp2, 127.0f), 0x1p127f);
  EXPECT_EQ(one(Operation::exp2, -126.0f), 0x1p-126f);
  EXPECT_EQ(one(Operation::exp2, 128.0f), kInfinity);
}

/// Nearest of the type's values around x, ties to even, by arithmetic in double.
double nearest(double x, int bits, int least_exponent, double overflow) {
  if (!std::isfinite(x) || x == 0) return x;
  const double unit = std::ldexp(1.0, std::max(std::ilogb(x), least_exponent) - (bits - 1));
  const double rounded = std::nearbyint(x / unit) * unit;
  return std::fabs(rounded) >= overflow ? std::copysign(double(kInfinity), x) : rounded;
}

TEST_P(Simd, SixteenBitTypesRoundToNearestEven) {
  const std::vector<float> x = floats();
  const std::vector<float> bf16 = of(Operation::bf16, x), fp16 = of(Operation::fp16, x);
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i])) {
      ASSERT_TRUE(std::isnan(bf16[i]) && std::isnan(fp16[i]));
      continue;
    }
    ASSERT_EQ(double(bf16[i]), nearest(double(x[i]), 8, -126, 0x1p128)) << x[i];
    ASSERT_EQ(double(fp16[i]), nearest(double(x[i]), 11, -14, 0x1p16)) << x[i];
  }
  EXPECT_EQ(one(Operation::fp16, 65519.0f), 65504.0f);
  EXPECT_EQ(one(Operation::fp16, 65520.0f), kInfinity);
  EXPECT_EQ(one(Operation::fp16, 0x1p-24f), 0x1p-24f);
  EXPECT_EQ(one(Operation::fp16, 0x1p-25f), 0.0f);
  EXPECT_EQ(one(Operation::bf16, 1 + 0x1p-8f), 1.0f);
  EXPECT_EQ(one(Operation::bf16, 1 + 3 * 0x1p-8f), 1 + 0x1p-6f);
}

TEST_P(Simd, ReductionsTakeEveryLaneAndPartialLoadsFillWithZero) {
  for (int lanes = 1; lanes <= width_; ++lanes) {
    std::vector<float> x;
    for (int i = 0; i < lanes; ++i) x.push_back(static_cast<float>(1 << i));
    EXPECT_EQ(of(Operation::lane_sum, x)[0], static_cast<float>((1 << lanes) - 1));
    EXPECT_EQ(of(Operation::lane_max, x)[0], static_cast<float>(1 << (lanes - 1)));
  }
}

}  // namespace
}  // namespace warpmeter::isa_math_probe
