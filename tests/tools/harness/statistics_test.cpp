#include "tools/harness/statistics.hpp"

#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include "kernels/runtime/check.hpp"

namespace warpmeter::harness {
namespace {

std::vector<double> one_to(int n) {
  std::vector<double> values(static_cast<std::size_t>(n));
  std::iota(values.begin(), values.end(), 1.0);
  return values;
}

TEST(Percentile, NearestRankIsExactWhereTheRankIsWhole) {
  const auto hundred = one_to(100);
  for (int k = 1; k <= 100; ++k) EXPECT_EQ(percentile(hundred, k / 100.0), k) << k;
  const auto twenty = one_to(20);
  EXPECT_EQ(percentile(twenty, 0.95), 19);
  EXPECT_EQ(percentile(twenty, 0.99), 20);
  EXPECT_EQ(percentile(twenty, 0.951), 20);
  EXPECT_EQ(percentile(twenty, 1e-6), 1);
  EXPECT_EQ(percentile(twenty, 1.0), 20);
}

TEST(Percentile, AgreesWithItsDefinitionForEverySize) {
  for (int n = 1; n <= 60; ++n) {
    const auto values = one_to(n);
    for (const int q : {1, 5, 25, 50, 75, 90, 95, 99, 100}) {
      int rank = 1;
      while (rank * 100 < q * n) ++rank;  // the smallest with rank / n >= q / 100
      EXPECT_EQ(percentile(values, q / 100.0), rank) << "n " << n << " q " << q;
    }
  }
}

TEST(Percentile, RefusesShareOutsideOfTheUnitInterval) {
  const auto values = one_to(3);
  EXPECT_THROW((void)percentile(values, 0.0), CheckError);
  EXPECT_THROW((void)percentile(values, 1.01), CheckError);
}

TEST(Summarize, NoSamplesGiveNaNEverywhere) {
  const Statistics none = summarize({});
  EXPECT_EQ(none.n, 0u);
  for (const double value :
       {none.min_ms, none.median_ms, none.mean_ms, none.p95_ms, none.p99_ms, none.max_ms, none.stdev_ms, none.noise}) {
    EXPECT_TRUE(std::isnan(value));
  }
}

TEST(Summarize, OneSampleHasNoDeviation) {
  const std::vector<double> one{2.5};
  const Statistics result = summarize(one);
  EXPECT_EQ(result.n, 1u);
  for (const double value :
       {result.min_ms, result.median_ms, result.mean_ms, result.p95_ms, result.p99_ms, result.max_ms}) {
    EXPECT_EQ(value, 2.5);
  }
  EXPECT_TRUE(std::isnan(result.stdev_ms));
  EXPECT_EQ(result.noise, 0);
}

TEST(Summarize, TwoSamples) {
  const std::vector<double> two{3, 1};
  const Statistics result = summarize(two);
  EXPECT_EQ(result.min_ms, 1);
  EXPECT_EQ(result.median_ms, 2);
  EXPECT_EQ(result.mean_ms, 2);
  EXPECT_EQ(result.max_ms, 3);
  EXPECT_EQ(result.p95_ms, 3);
  EXPECT_DOUBLE_EQ(result.stdev_ms, std::sqrt(2.0));
  EXPECT_EQ(result.noise, 1);  // quartiles 1 and 3
}

TEST(Summarize, OddAndEvenNumbersInAnyOrder) {
  const std::vector<double> odd{5, 1, 4, 2, 3};
  const Statistics five = summarize(odd);
  EXPECT_EQ(five.median_ms, 3);
  EXPECT_EQ(five.mean_ms, 3);
  EXPECT_DOUBLE_EQ(five.stdev_ms, std::sqrt(2.5));
  EXPECT_DOUBLE_EQ(five.noise, 2.0 / 3.0);  // quartiles 2 and 4
  const std::vector<double> even{6, 1, 5, 2, 4, 3};
  const Statistics six = summarize(even);
  EXPECT_EQ(six.median_ms, 3.5);
  EXPECT_EQ(six.mean_ms, 3.5);
  EXPECT_DOUBLE_EQ(six.stdev_ms, std::sqrt(3.5));
  EXPECT_DOUBLE_EQ(six.noise, 3.0 / 3.5);  // quartiles 2 and 5
}

TEST(Summarize, EqualSamplesAreExact) {
  const std::vector<double> equal(1000003, 0.1);
  const Statistics result = summarize(equal);
  EXPECT_EQ(result.mean_ms, 0.1);
  EXPECT_EQ(result.stdev_ms, 0);
  EXPECT_EQ(result.noise, 0);
}

TEST(Summarize, AllZeroHasNoNoise) {
  const std::vector<double> zeros(7, 0.0);
  const Statistics result = summarize(zeros);
  EXPECT_EQ(result.median_ms, 0);
  EXPECT_EQ(result.noise, 0);
  EXPECT_EQ(result.stdev_ms, 0);
}

TEST(Summarize, ZeroMedianWithSpreadIsNeverQuiet) {
  const std::vector<double> samples{0, 0, 0, 0, 0, 0, 1, 1, 1, 1};
  const Statistics result = summarize(samples);
  EXPECT_EQ(result.median_ms, 0);
  EXPECT_TRUE(std::isinf(result.noise));
}

TEST(Summarize, LargeOffsetAndCountCostNoDigits) {
  // 2e6 samples of 1e6 +- 0.25: sums of squares would lose the deviation altogether in float, most of it in double.
  std::vector<double> samples;
  for (int i = 0; i < 1000000; ++i) {
    samples.push_back(1e6 - 0.25);
    samples.push_back(1e6 + 0.25);
  }
  const Statistics result = summarize(samples);
  EXPECT_EQ(result.mean_ms, 1e6);
  EXPECT_NEAR(result.stdev_ms, 0.25, 1e-7);
  EXPECT_EQ(result.median_ms, 1e6);
}

TEST(Summarize, RefusesWhatIsNoNumber) {
  const std::vector<double> samples{1, std::nan("")};
  EXPECT_THROW((void)summarize(samples), CheckError);
}

double number(const reports::Object& figures, std::string_view field) {
  const reports::Value* value = figures.find(field);
  if (value == nullptr) return -1;
  return value->as_number().value_or(-2);
}

TEST(AddStatistics, NamesAndOrder) {
  Samples samples;
  samples.milliseconds = {1, 2, 3, 4, 10};
  samples.stop = StopReason::noise;
  reports::Object figures;
  add_statistics(figures, "fwd", samples);
  std::vector<std::string> names;
  for (const auto& [field, value] : figures.fields()) names.push_back(field);
  const std::vector<std::string> expected{"fwd_ms",       "fwd_mean_ms", "fwd_min_ms", "fwd_p95_ms", "fwd_p99_ms",
                                          "fwd_stdev_ms", "fwd_noise",   "fwd_n",      "fwd_stop",   "fwd_samples_ms"};
  EXPECT_EQ(names, expected);
  EXPECT_EQ(number(figures, "fwd_ms"), 3);
  EXPECT_EQ(number(figures, "fwd_mean_ms"), 4);
  EXPECT_EQ(number(figures, "fwd_min_ms"), 1);
  EXPECT_EQ(number(figures, "fwd_p95_ms"), 10);
  EXPECT_EQ(number(figures, "fwd_p99_ms"), 10);
  EXPECT_DOUBLE_EQ(number(figures, "fwd_stdev_ms"), std::sqrt(12.5));
  EXPECT_DOUBLE_EQ(number(figures, "fwd_noise"), 2.0 / 3.0);
  EXPECT_EQ(number(figures, "fwd_n"), 5);
  EXPECT_EQ(*figures.find("fwd_stop")->as_string(), "noise");
  EXPECT_EQ(figures.find("fwd_samples_ms")->as_array()->size(), 5u);
}

TEST(AddStatistics, SaysWhatIsOutOfTheOrdinary) {
  Samples samples;
  samples.milliseconds = {1};
  samples.clock_mhz = 1755;
  samples.discarded = 3;
  samples.calls_per_sample = 40;
  reports::Object figures;
  add_statistics(figures, "bwd", samples);
  EXPECT_EQ(number(figures, "bwd_clock_mhz"), 1755);
  EXPECT_EQ(number(figures, "bwd_discarded"), 3);
  EXPECT_EQ(number(figures, "bwd_calls_per_sample"), 40);
}

TEST(AddStatistics, NoSamplesGiveNothingFinite) {
  reports::Object figures;
  add_statistics(figures, "fwd", Samples{});
  for (const char* field :
       {"fwd_ms", "fwd_mean_ms", "fwd_min_ms", "fwd_p95_ms", "fwd_p99_ms", "fwd_stdev_ms", "fwd_noise"}) {
    ASSERT_TRUE(figures.has(field)) << field;
    EXPECT_FALSE(figures.find(field)->as_number().has_value()) << field;
  }
  EXPECT_EQ(number(figures, "fwd_n"), 0);
}

TEST(StopReasonNames, AreTheDocumentsWords) {
  EXPECT_EQ(name(StopReason::steps), "steps");
  EXPECT_EQ(name(StopReason::noise), "noise");
  EXPECT_EQ(name(StopReason::max_time), "max_time");
  EXPECT_EQ(name(StopReason::interrupted), "interrupted");
}

}  // namespace
}  // namespace warpmeter::harness
