#include "kernels/data_parallel/overhead.hpp"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

namespace warpmeter::data_parallel {
namespace {

constexpr double kBytes = 8e9, kOverhead = 20e-6, kRate = 300e9;

std::vector<CommunicationTime> times(const std::vector<double>& calls, double noise = 0) {
  std::vector<CommunicationTime> all;
  double sign = 1;
  for (const double n : calls) {
    all.push_back({n, kBytes, (kBytes / kRate + n * kOverhead) * (1 + sign * noise)});
    sign = -sign;
  }
  return all;
}

TEST(Overhead, FindsWhatCallsAndBytesCost) {
  const auto model = fit_overhead(times({8, 80, 320, 8000}));
  ASSERT_TRUE(model);
  EXPECT_NEAR(model->overhead_s, kOverhead, 1e-6 * kOverhead);
  EXPECT_NEAR(model->bytes_per_s, kRate, 1e-6 * kRate);
  const auto noisy = fit_overhead(times({8, 80, 320, 8000}, 0.01));
  ASSERT_TRUE(noisy);
  EXPECT_NEAR(noisy->overhead_s, kOverhead, 0.05 * kOverhead);
  EXPECT_NEAR(noisy->bytes_per_s, kRate, 0.05 * kRate);
}

TEST(Overhead, TheBestBucketHasTheLeastOverhead) {
  const OverheadModel model{kOverhead, kRate};
  const double best = model.best_bucket_bytes(kBytes);
  EXPECT_NEAR(best, std::sqrt(kBytes * kRate * kOverhead), 1);
  const double least = model.step_overhead_s(kBytes, kBytes / best);
  for (const double share : {0.5, 0.9, 1.1, 2.0}) {
    EXPECT_GT(model.step_overhead_s(kBytes, kBytes / (best * share)), least) << share;
  }
}

TEST(Overhead, SaysNothingWhereNothingCanBeSaid) {
  EXPECT_FALSE(fit_overhead({}));
  EXPECT_FALSE(fit_overhead(times({8})));
  EXPECT_FALSE(fit_overhead(times({8, 8, 8})));
  // More calls in less time: calls would be for nothing.
  const std::vector<CommunicationTime> absurd{{1, kBytes, 1.0}, {100, kBytes, 0.5}};
  EXPECT_FALSE(fit_overhead(absurd));
}

}  // namespace
}  // namespace warpmeter::data_parallel
