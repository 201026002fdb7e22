#include "kernels/data_parallel/waiting.hpp"

#include <gtest/gtest.h>

#include "kernels/runtime/check.hpp"

namespace warpmeter::data_parallel {
namespace {

using Times = std::vector<double>;

TEST(Waiting, TheRankThatCameLastTellsWhatCommunicationTook) {
  // The ranks take turns in being late: each waits 3 ms for the other in the steps in which it is not.
  const Waiting waiting = split_waiting({{1, 4.5, 2}, {4, 1.5, 2}});
  EXPECT_EQ(waiting.exposed_ms, (Times{1, 1.5, 2}));
  EXPECT_EQ(waiting.skew_ms, (Times{3, 3, 0}));
}

TEST(Waiting, OfManyRanksTheLastAndTheFirstCount) {
  const Waiting waiting = split_waiting({{5}, {2}, {9}, {3}});
  EXPECT_EQ(waiting.exposed_ms, Times{2});
  EXPECT_EQ(waiting.skew_ms, Times{7});
}

TEST(Waiting, OneRankWaitsForNobody) {
  const Waiting waiting = split_waiting({{0.5, 0.25}});
  EXPECT_EQ(waiting.exposed_ms, (Times{0.5, 0.25}));
  EXPECT_EQ(waiting.skew_ms, (Times{0, 0}));
}

TEST(Waiting, RanksWithOtherNumbersOfStepsAreRefused) {
  EXPECT_THROW((void)split_waiting({{1, 2}, {1}}), CheckError);
  EXPECT_THROW((void)split_waiting({}), CheckError);
}

}  // namespace
}  // namespace warpmeter::data_parallel
