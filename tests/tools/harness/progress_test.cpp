#include "tools/harness/progress.hpp"

#include <array>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace warpmeter::harness {
namespace {

TEST(EstimateSeconds, NothingIsKnownBeforeTheFirstRow) {
  EXPECT_FALSE(estimate_seconds({}, std::array{1.0}).has_value());
}

TEST(EstimateSeconds, RowsOfOneSizeTakeTheirMean) {
  const std::array done = {FinishedRow{5, 2}, FinishedRow{5, 4}};
  EXPECT_DOUBLE_EQ(estimate_seconds(done, std::array{5.0, 5.0}).value(), 6);
}

TEST(EstimateSeconds, FollowsTheLineThroughFinishedRows) {
  const std::array done = {FinishedRow{1, 2 + 3}, FinishedRow{4, 2 + 12}};  // 2 s and 3 s for each FLOP
  EXPECT_DOUBLE_EQ(estimate_seconds(done, std::array{10.0, 0.0}).value(), 32 + 2);
}

TEST(EstimateSeconds, LargerRowsAreNeverTakenToBeFaster) {
  const std::array done = {FinishedRow{1, 4}, FinishedRow{4, 2}};
  EXPECT_DOUBLE_EQ(estimate_seconds(done, std::array{100.0}).value(), 3);
}

TEST(EstimateSeconds, SetUpNeverTakesLessThanNothing) {
  const std::array done = {FinishedRow{1, 0.5}, FinishedRow{3, 7.5}};  // the plain line crosses zero at -3 s
  EXPECT_DOUBLE_EQ(estimate_seconds(done, std::array{4.0}).value(), 8);
}

TEST(EstimateSeconds, NothingLeftTakesNoTime) {
  EXPECT_DOUBLE_EQ(estimate_seconds(std::array{FinishedRow{1, 1}}, {}).value(), 0);
}

TEST(FormatDuration, IsShort) {
  EXPECT_EQ(format_duration(0.4), "0 s");
  EXPECT_EQ(format_duration(59.4), "59 s");
  EXPECT_EQ(format_duration(59.6), "1 min 00 s");
  EXPECT_EQ(format_duration(185), "3 min 05 s");
  EXPECT_EQ(format_duration(7800), "2 h 10 min");
  EXPECT_EQ(format_duration(1.0 / 0.0), "?");
  EXPECT_EQ(format_duration(-1), "?");
}

TEST(Progress, ShowsCountTimesAndLabel) {
  ProgressConsole console("tool", open("/dev/null", O_WRONLY | O_CLOEXEC));
  Progress progress(console, {1, 1, 2, 0});
  EXPECT_EQ(progress.text("first", 0), "[........................] 0/4  0 s elapsed  first");
  progress.finish(2);
  progress.finish(2);
  EXPECT_EQ(progress.text("third", 65), "[############............] 2/4  1 min 05 s elapsed, 4 s left  third");
  progress.finish(2);
  progress.finish(2);
  EXPECT_EQ(progress.text("", 70), "[########################] 4/4  1 min 10 s elapsed, 0 s left");
}

class ConsoleOutput : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(pipe2(ends_.data(), O_CLOEXEC), 0); }
  void TearDown() override { close(ends_[0]); }
  std::string written() {
    close(ends_[1]);
    std::string text(4096, '\0');
    text.resize(static_cast<std::size_t>(std::max<ssize_t>(0, read(ends_[0], text.data(), text.size()))));
    return text;
  }
  std::array<int, 2> ends_ = {-1, -1};
};

TEST_F(ConsoleOutput, HasNoBarWhereThereIsNoTerminal) {
  {
    ProgressConsole console("tool", ends_[1]);
    console.show_status("[###] 1/2");
    console.warning("odd\nthing");
    console.line("done");
    EXPECT_FALSE(console.is_terminal());
  }
  EXPECT_EQ(written(), "tool: warning: odd\\nthing\ntool: done\n");
}

}  // namespace
}  // namespace warpmeter::harness
