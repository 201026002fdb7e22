#include "kernels/data_parallel/plan.hpp"

#include <algorithm>

#include <gtest/gtest.h>

namespace warpmeter::data_parallel {
namespace {

using Range = GradientPlan::Range;

TrainedParameter parameter(std::int64_t count, bool trainable = true, bool joined = false, bool needs_place = false) {
  return {"", count, trainable, joined, needs_place};
}

std::vector<std::vector<std::size_t>> parameters_of(const std::vector<Range>& ranges) {
  std::vector<std::vector<std::size_t>> all;
  for (const Range& range : ranges) all.push_back(range.parameters);
  return all;
}

TEST(GradientPlan, PlacesKeepOrderAndGroupsAreAligned) {
  const GradientPlan plan({parameter(10), parameter(300), parameter(7, true, true), parameter(256)}, 4);
  EXPECT_EQ(plan.places(), (std::vector<std::int64_t>{0, 256, 556, 768}));
  EXPECT_EQ(plan.elements(), 1024);
}

TEST(GradientPlan, FrozenParametersHaveAPlaceOnlyWhereTheyMust) {
  const GradientPlan plan({parameter(10, false), parameter(20, false, false, true), parameter(5),
                           parameter(5, false, true), parameter(30, false), parameter(1, false, true)},
                          4);
  EXPECT_EQ(plan.places(), (std::vector<std::int64_t>{-1, 0, 256, 261, -1, -1}));
  // What is not trained is sent only where it lies between what is.
  EXPECT_EQ(parameters_of(plan.all_at_once()), (std::vector<std::vector<std::size_t>>{{2}}));
  EXPECT_EQ(plan.all_at_once().front().begin, 256);
  EXPECT_EQ(plan.all_at_once().front().count, 5);
}

TEST(GradientPlan, BucketsFillFromTheEndUpToTheirSize) {
  const GradientPlan plan({parameter(256), parameter(256), parameter(1024), parameter(256), parameter(256)}, 4);
  const auto two = plan.buckets(2 * 256 * 4);
  EXPECT_EQ(parameters_of(two), (std::vector<std::vector<std::size_t>>{{3, 4}, {2}, {0, 1}}));
  for (const Range& range : two) {
    const bool alone = range.parameters.size() == 1;
    EXPECT_TRUE(alone || range.count * 4 <= 2 * 256 * 4);
  }
  // One byte less, and no two fit.
  EXPECT_EQ(plan.buckets(2 * 256 * 4 - 1).size(), 5U);
  EXPECT_EQ(plan.buckets(1).size(), 5U);
  EXPECT_EQ(plan.buckets(1 << 20).size(), 1U);
}

TEST(GradientPlan, GapsCountAsTheyAreSent) {
  // 10 elements, then a gap to 256, then 10: 266 together.
  const GradientPlan plan({parameter(10), parameter(10)}, 4);
  EXPECT_EQ(plan.buckets(266 * 4).size(), 1U);
  EXPECT_EQ(plan.buckets(266 * 4 - 1).size(), 2U);
}

TEST(GradientPlan, EveryWayCoversEveryTrainedParameterOnce) {
  std::vector<TrainedParameter> parameters;
  for (int i = 0; i < 40; ++i) parameters.push_back(parameter(1 + i * 37 % 700, i % 5 != 2, i % 4 == 1, i % 7 == 0));
  const GradientPlan plan(parameters, 2);
  for (const auto& ranges : {plan.one_each(), plan.all_at_once(), plan.buckets(1000), plan.buckets(5000)}) {
    std::vector<std::size_t> seen;
    std::int64_t end = plan.elements();
    for (const Range& range : ranges) {
      EXPECT_LE(range.begin + range.count, end) << "ranges overlap, or are not in the order of the backward";
      end = range.begin;
      for (const std::size_t i : range.parameters) {
        seen.push_back(i);
        EXPECT_GE(plan.places()[i], range.begin);
        EXPECT_LE(plan.places()[i] + parameters[i].count, range.begin + range.count);
      }
    }
    std::sort(seen.begin(), seen.end());
    std::vector<std::size_t> trained;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].trainable) trained.push_back(i);
    }
    EXPECT_EQ(seen, trained);
  }
}

}  // namespace
}  // namespace warpmeter::data_parallel
