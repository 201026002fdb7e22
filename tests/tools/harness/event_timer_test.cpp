#include "tools/harness/detail/event_timer.hpp"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace warpmeter::harness::detail {
namespace {

/// What the timer did, in order; shared by the parts below, which stand for a GPU's.
struct Log {
  std::vector<std::string> entries;
  std::vector<std::int64_t> limits_ns;
  int give_ups_left = 0;  ///< holds that will report that they gave up
  ClockProbe::Window window{1900e3, 1e6};
  std::vector<std::string> warnings;
};

class LoggedFlush final : public CacheFlush {
 public:
  explicit LoggedFlush(Log& log) : log_(log) {}
  void flush() override { log_.entries.push_back("flush"); }

 private:
  Log& log_;
};

class LoggedProbe final : public ClockProbe {
 public:
  explicit LoggedProbe(Log& log) : log_(log) {}
  void begin(StreamView) override { log_.entries.push_back("stamp"); }
  void end(StreamView) override { log_.entries.push_back("stamp"); }
  Window read() const override { return log_.window; }
  double resolution_ns() const override { return 1000; }
  double max_clock_mhz() const override { return 1980; }

 private:
  Log& log_;
};

class LoggedBlocker final : public Blocker {
 public:
  explicit LoggedBlocker(Log& log) : log_(log) {}
  void hold(StreamView, std::int64_t limit_ns) override {
    log_.entries.push_back("hold");
    log_.limits_ns.push_back(limit_ns);
    gave_up_ = log_.give_ups_left > 0 && log_.give_ups_left-- > 0;
  }
  void release() noexcept override { log_.entries.push_back("release"); }
  bool gave_up() const noexcept override { return gave_up_; }

 private:
  Log& log_;
  bool gave_up_ = false;
};

struct Parts {
  Parts()
      : timer(StreamView{}, std::make_unique<LoggedFlush>(log), std::make_unique<LoggedProbe>(log),
              std::make_unique<LoggedBlocker>(log), [this](const std::string& text) { log.warnings.push_back(text); }) {
    phase.enqueue = [this] { log.entries.push_back("work"); };
    timer.begin();
  }
  int count(const std::string& entry) const {
    return static_cast<int>(std::count(log.entries.begin(), log.entries.end(), entry));
  }
  Log log;
  EventTimer timer;
  Phase phase;
};

using Entries = std::vector<std::string>;

TEST(EventTimer, WorkIsEnqueuedBehindAHeldStreamAfterTheFlush) {
  Parts parts;
  (void)parts.timer.sample(parts.phase, 1);
  EXPECT_EQ(parts.log.entries, (Entries{"flush", "stamp", "hold", "work", "stamp", "release"}));
}

TEST(EventTimer, APhasesFirstHoldIsShortAndLaterOnesLong) {
  Parts parts;
  for (int i = 0; i < 3; ++i) (void)parts.timer.sample(parts.phase, 1);
  parts.timer.begin();
  (void)parts.timer.sample(parts.phase, 1);
  EXPECT_EQ(parts.log.limits_ns,
            (std::vector<std::int64_t>{1'000'000'000, 30'000'000'000, 30'000'000'000, 1'000'000'000}));
}

TEST(EventTimer, MoreLaunchesThanAQueueTakesAreNotHeld) {
  Parts parts;
  parts.phase.launches = 500;
  (void)parts.timer.sample(parts.phase, 1);
  EXPECT_EQ(parts.count("hold"), 1);
  parts.phase.launches = 501;
  (void)parts.timer.sample(parts.phase, 1);
  EXPECT_EQ(parts.count("hold"), 1);
  EXPECT_EQ(parts.count("release"), 1);
  EXPECT_EQ(parts.count("work"), 2);
}

TEST(EventTimer, AnExceptionReleasesTheStream) {
  Parts parts;
  parts.phase.enqueue = [] { throw std::runtime_error("out of memory"); };
  EXPECT_THROW((void)parts.timer.sample(parts.phase, 1), std::runtime_error);
  EXPECT_EQ(parts.log.entries, (Entries{"flush", "stamp", "hold", "release"}));
}

TEST(EventTimer, AHoldThatGivesUpIsRepeatedWithoutOne) {
  Parts parts;
  parts.log.give_ups_left = 1;
  parts.phase.prepare = [&] { parts.log.entries.push_back("prepare"); };
  (void)parts.timer.sample(parts.phase, 1);
  EXPECT_EQ(parts.log.entries, (Entries{"flush", "stamp", "hold", "work", "stamp", "release",  // thrown away
                                        "prepare", "flush", "stamp", "work", "stamp"}));
  ASSERT_EQ(parts.log.warnings.size(), 1u);
  (void)parts.timer.sample(parts.phase, 1);
  EXPECT_EQ(parts.count("hold"), 1);  // not for the rest of the phase
  parts.timer.begin();
  (void)parts.timer.sample(parts.phase, 1);
  EXPECT_EQ(parts.count("hold"), 2);  // but for the next
}

TEST(EventTimer, AfterTwoPhasesThatCannotBeHeldNoMoreIsTried) {
  Parts parts;
  parts.log.give_ups_left = 100;
  for (int phase = 0; phase < 10; ++phase) {
    parts.timer.begin();
    (void)parts.timer.sample(parts.phase, 1);
  }
  EXPECT_EQ(parts.count("hold"), 2);
}

TEST(EventTimer, TimesBetweenItsEvents) {
  Parts parts;
  parts.phase.enqueue = [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); };
  const auto start = std::chrono::steady_clock::now();
  const Reading reading = parts.timer.sample(parts.phase, 1);
  const std::chrono::duration<double, std::milli> around = std::chrono::steady_clock::now() - start;
  EXPECT_GE(reading.milliseconds, 20);
  EXPECT_LE(reading.milliseconds, around.count());
}

TEST(EventTimer, ReadsAndJudgesTheClock) {
  Parts parts;
  const Reading fast = parts.timer.sample(parts.phase, 1);
  EXPECT_DOUBLE_EQ(fast.clock_mhz(), 1900);
  EXPECT_FALSE(fast.throttled);
  parts.log.window = {1400e3, 1e6};  // 1400 MHz of 1980: 71%
  EXPECT_TRUE(parts.timer.sample(parts.phase, 1).throttled);
}

TEST(ThrottleRule, HasItsBoundAndItsPrecision) {
  EXPECT_FALSE(is_throttled({750e3, 1e6}, 1000, 1000));
  EXPECT_TRUE(is_throttled({749e3, 1e6}, 1000, 1000));
  EXPECT_FALSE(is_throttled({1, 9999}, 1000, 1000));  // under 10 ticks nothing can be said
  EXPECT_TRUE(is_throttled({1, 10000}, 1000, 1000));
  EXPECT_FALSE(is_throttled({0, 0}, 0, 1000));  // could not be read
}

std::string reason(std::vector<const char*> environment) {
  environment.push_back(nullptr);
  return serialized_launches_reason(environment.data());
}

TEST(SerializedLaunches, AreFoundInTheEnvironment) {
  EXPECT_NE(reason({"PATH=/bin", "CUDA_LAUNCH_BLOCKING=1"}).find("CUDA_LAUNCH_BLOCKING"), std::string::npos);
  EXPECT_NE(reason({"NSYS_PROFILING_SESSION_ID=7"}), "");
  EXPECT_NE(reason({"NV_NSIGHT_INJECTION_PORT_BASE=49152"}), "");
  EXPECT_NE(reason({"NV_COMPUTE_PROFILER_PERFWORKS_DIR=/opt/ncu"}), "");
  EXPECT_NE(reason({"CUDA_INJECTION64_PATH=/opt/libinject.so"}), "");
}

TEST(SerializedLaunches, AWatcherIsNamedAndIsNoSetting) {
  const auto watching = [](std::vector<const char*> environment) {
    environment.push_back(nullptr);
    return std::string(watching_variable(environment.data()));
  };
  EXPECT_EQ(watching({"CUDA_LAUNCH_BLOCKING=1", "NV_SANITIZER_INJECTION_PORT_RANGE_BEGIN=1"}),
            "NV_SANITIZER_INJECTION_PORT_RANGE_BEGIN");
  EXPECT_EQ(watching({"CUDA_LAUNCH_BLOCKING=1", "NV_COMPUTE_PROFILER_PERFWORKS_DIR_OLD=/opt"}), "");
  EXPECT_EQ(std::string(watching_variable(nullptr)), "");
}

TEST(SerializedLaunches, NothingElseCounts) {
  EXPECT_EQ(reason({}), "");
  EXPECT_EQ(serialized_launches_reason(nullptr), "");
  EXPECT_EQ(reason({"CUDA_LAUNCH_BLOCKING=0", "CUDA_LAUNCH_BLOCKING=", "CUDA_INJECTION64_PATH=", "junk"}), "");
  EXPECT_EQ(reason({"NVTX_INJECTION64_PATH=/opt/libnvtx.so", "NV_COMPUTE_PROFILER_DISABLE_STOCK_FILE_DEPLOYMENT=1",
                    "MY_NSYS_PROFILING_SESSION_ID=1"}),
            "");
}

}  // namespace
}  // namespace warpmeter::harness::detail
