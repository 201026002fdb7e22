#include "tools/harness/sampler.hpp"

#include <csignal>
#include <cstdlib>
#include <ctime>
#include <stdexcept>

#include <gtest/gtest.h>

#include "kernels/runtime/allocator.hpp"
#include "tests/tools/harness/scripted_time.hpp"
#include "tools/harness/detail/cpu_cache_flush.hpp"
#include "tools/harness/detail/steady_timer.hpp"
#include "tools/harness/detail/stopping.hpp"

namespace warpmeter::harness {
namespace {

using detail::Reading;

Settings fixed_steps(std::int64_t steps) {
  Settings settings;
  settings.warmup = 0;
  settings.steps = steps;
  return settings;
}

Settings adaptive(double max_noise = 0.005, double max_time_s = 2) {
  Settings settings;
  settings.warmup = 0;
  settings.max_noise = max_noise;
  settings.max_time_s = max_time_s;
  return settings;
}

Phase counted(int& calls) {
  Phase phase;
  phase.enqueue = [&calls] { ++calls; };
  return phase;
}

Reading steady_reading(double ms) {
  Reading reading;
  reading.milliseconds = ms;
  return reading;
}

/// One measurement with scripted readings.
struct ScriptedRun {
  explicit ScriptedRun(const Settings& settings, std::function<Reading(int)> script, std::int64_t least_warm_up = 0)
      : sampler(make(std::move(script), least_warm_up), clock, settings,
                [this](const std::string& text) { warnings.push_back(text); }) {}
  Samples measure() { return sampler.measure(counted(calls)); }

  std::unique_ptr<detail::Timer> make(std::function<Reading(int)> script, std::int64_t least_warm_up) {
    auto owned = std::make_unique<ScriptedTimer>(clock, std::move(script), least_warm_up);
    timer = owned.get();
    return owned;
  }

  ScriptedClock clock;
  std::vector<std::string> warnings;
  ScriptedTimer* timer = nullptr;
  int calls = 0;
  Sampler sampler;
};

TEST(Sampler, PausesLeaveSamplesTheirPartOfTheTime) {
  Settings settings = fixed_steps(3);
  settings.duty_cycle = 0.25;
  ScriptedRun run(settings, [](int k) { return steady_reading(2 + k); });
  EXPECT_EQ(run.measure().milliseconds, (std::vector<double>{2, 3, 4}));
  EXPECT_EQ(run.clock.sleeps_ns, (std::vector<std::int64_t>{6'000'000, 9'000'000}));  // none behind the last
  ScriptedRun without(fixed_steps(3), [](int) { return steady_reading(2); });
  (void)without.measure();
  EXPECT_TRUE(without.clock.sleeps_ns.empty());
}

TEST(Sampler, WhatIsDoneBetweenSamplesCountsInNoTime) {
  ScriptedRun run(adaptive(0, 0.1), [](int) { return steady_reading(30); });
  Phase phase = counted(run.calls);
  int between = 0;
  phase.between = [&] {
    ++between;
    run.clock.pass_ns(1'000'000'000);
  };
  const Samples samples = run.sampler.measure(phase);
  EXPECT_EQ(samples.milliseconds, (std::vector<double>{30, 30, 30, 30}));  // as without: until 0.1 s of its own
  EXPECT_EQ(between, 3);                                                   // none behind the last
  EXPECT_EQ(samples.stop, StopReason::max_time);
}

TEST(Sampler, OneMeasurementMayHaveOtherLimits) {
  Settings settings = fixed_steps(7);
  settings.warmup = 3;
  ScriptedRun run(settings, [](int) { return steady_reading(30); });
  Settings limits = adaptive(0, 0.1);
  limits.warmup = 1;
  EXPECT_EQ(run.sampler.measure(counted(run.calls), limits).milliseconds.size(), 4u);
  EXPECT_EQ(run.timer->runs, 1);
  EXPECT_EQ(run.measure().milliseconds.size(), 7u);
  EXPECT_EQ(run.timer->runs, 4);
}

TEST(Sampler, FixedStepsAreExact) {
  for (const std::int64_t steps : {1, 2, 7, 100}) {
    ScriptedRun run(fixed_steps(steps), [](int k) { return steady_reading(1 + k); });
    const Samples samples = run.measure();
    ASSERT_EQ(samples.milliseconds.size(), static_cast<std::size_t>(steps));
    EXPECT_EQ(samples.milliseconds.front(), 1);
    EXPECT_EQ(samples.milliseconds.back(), static_cast<double>(steps));  // in the order taken
    EXPECT_EQ(samples.stop, StopReason::steps);
    EXPECT_EQ(samples.calls_per_sample, 1);
    EXPECT_EQ(run.calls, steps);
  }
}

TEST(Sampler, FixedStepsIgnoreTheTimeLimit) {
  Settings settings = fixed_steps(10);
  settings.max_time_s = 0.001;
  ScriptedRun run(settings, [](int) { return steady_reading(1000); });
  EXPECT_EQ(run.measure().milliseconds.size(), 10u);
}

TEST(Sampler, QuietSamplesStopWhenTheySpanEnough) {
  // 20 ms each: a quarter of 2 s is passed with the 25th.
  ScriptedRun slow(adaptive(), [](int) { return steady_reading(20); });
  const Samples few = slow.measure();
  EXPECT_EQ(few.stop, StopReason::noise);
  EXPECT_EQ(few.milliseconds.size(), 25u);
  // 1 ms each: 30 samples are taken in 30 ms, but a twentieth of 2 s are 100.
  ScriptedRun fast(adaptive(), [](int) { return steady_reading(1); });
  const Samples many = fast.measure();
  EXPECT_EQ(many.stop, StopReason::noise);
  EXPECT_EQ(many.milliseconds.size(), 100u);
}

TEST(Sampler, FiveSamplesAtLeastBeforeNoiseDecides) {
  ScriptedRun run(adaptive(0.005, 2), [](int) { return steady_reading(350); });
  const Samples samples = run.measure();
  EXPECT_EQ(samples.milliseconds.size(), 5u);
  EXPECT_EQ(samples.stop, StopReason::noise);
}

TEST(Sampler, ALuckyStartDoesNotDecide) {
  // The first ten agree; from then on every other sample is a tenth slower.
  ScriptedRun run(adaptive(), [](int k) { return steady_reading(k < 10 || k % 2 == 0 ? 10 : 11); });
  const Samples samples = run.measure();
  EXPECT_EQ(samples.stop, StopReason::max_time);
  EXPECT_GT(samples.statistics().noise, 0.05);
}

TEST(Sampler, NoiseStopsAtMaxTime) {
  ScriptedRun run(adaptive(0.005, 2), [](int k) { return steady_reading(k % 2 == 0 ? 90 : 110); });
  const Samples samples = run.measure();
  EXPECT_EQ(samples.stop, StopReason::max_time);
  EXPECT_EQ(samples.milliseconds.size(), 20u);
}

TEST(Sampler, OneSampleIsTakenHoweverLong) {
  ScriptedRun run(adaptive(0.005, 2), [](int) { return steady_reading(60000); });
  const Samples samples = run.measure();
  EXPECT_EQ(samples.milliseconds.size(), 1u);
  EXPECT_EQ(samples.stop, StopReason::max_time);
}

TEST(Sampler, NoiseIsReachedOnceTheSamplesSettle) {
  // A ramp that ends: the quartiles leave it behind after some time, long before the limit.
  ScriptedRun run(adaptive(0.01, 10), [](int k) { return steady_reading(k < 20 ? 40 - k : 20); });
  const Samples samples = run.measure();
  EXPECT_EQ(samples.stop, StopReason::noise);
  EXPECT_EQ(samples.statistics().median_ms, 20);
  EXPECT_LT(samples.milliseconds.size(), 150u);
}

TEST(Sampler, AllZeroReadingsEnd) {
  // nvbench#61, #374: equal times of 0 never counted as quiet, and time did not pass.
  Settings settings = adaptive();
  ScriptedClock clock(1, 1000);
  int calls = 0;
  Sampler sampler(std::make_unique<ScriptedTimer>(clock, [](int) { return Reading{}; }), clock, settings);
  const Samples samples = sampler.measure(counted(calls));
  EXPECT_EQ(samples.stop, StopReason::noise);
  EXPECT_EQ(samples.statistics().noise, 0);
}

TEST(Sampler, LooksAtTheNoiseLessAndLessOften) {
  // 200 000 samples that never settle must not cost 200 000 sorts.
  ScriptedRun run(adaptive(0.005, 2), [](int k) { return steady_reading(k % 2 == 0 ? 0.009 : 0.011); });
  const std::clock_t start = std::clock();  // processor time: other programs take none of it
  EXPECT_EQ(run.measure().milliseconds.size(), 200000u);
  EXPECT_LT(std::clock() - start, 20 * CLOCKS_PER_SEC);
}

TEST(Sampler, WarmUpIsCountedBoundedAndPrepared) {
  Settings settings = fixed_steps(3);
  settings.warmup = 4;
  ScriptedRun run(settings, [](int) { return steady_reading(1); });
  int prepared = 0;
  Phase phase = counted(run.calls);
  phase.prepare = [&] { ++prepared; };
  (void)run.sampler.measure(phase);
  EXPECT_EQ(run.timer->runs, 4);
  EXPECT_EQ(prepared, 4 + 3);
  EXPECT_EQ(run.calls, 4 + 3);
  EXPECT_EQ(run.timer->phases, 1);
}

TEST(Sampler, WarmUpEndsWithMaxTime) {
  Settings settings = fixed_steps(1);
  settings.warmup = 1000;
  settings.max_time_s = 2;
  ScriptedRun run(settings, [](int) { return steady_reading(1); });
  Phase phase;
  phase.enqueue = [&] { run.clock.pass_ns(300'000'000); };
  (void)run.sampler.measure(phase);
  EXPECT_EQ(run.timer->runs, 7);
}

TEST(Sampler, ATimerMayInsistOnWarmUp) {
  ScriptedRun run(
      fixed_steps(1), [](int) { return steady_reading(1); }, 1);
  (void)run.measure();
  EXPECT_EQ(run.timer->runs, 1);
}

Reading clocked(double ms, double mhz, bool throttled) {
  Reading reading;
  reading.milliseconds = ms;
  reading.window_ns = ms * 1e6;
  reading.cycles = mhz * reading.window_ns * 1e-3;
  reading.throttled = throttled;
  return reading;
}

TEST(Sampler, ThrottledSamplesAreDiscardedWithBackOff) {
  ScriptedRun run(fixed_steps(4),
                  [](int k) { return k == 1 || k == 2 || k == 4 ? clocked(9, 900, true) : clocked(1, 1900, false); });
  const Samples samples = run.measure();
  EXPECT_EQ(samples.milliseconds, (std::vector<double>{1, 1, 1, 1}));
  EXPECT_EQ(samples.discarded, 3u);
  EXPECT_EQ(run.clock.sleeps_ns, (std::vector<std::int64_t>{50'000'000, 100'000'000, 50'000'000}));
  EXPECT_NEAR(samples.clock_mhz, 1900, 1e-9);
  EXPECT_TRUE(run.warnings.empty());
}

TEST(Sampler, ASustainedLowClockIsAcceptedAndSaid) {
  // nvbench#231: discarding for ever left rows without samples.
  ScriptedRun run(fixed_steps(6), [](int) { return clocked(2, 1000, true); });
  const Samples samples = run.measure();
  EXPECT_EQ(samples.milliseconds, (std::vector<double>(6, 2.0)));
  EXPECT_EQ(samples.discarded, 5u);
  EXPECT_EQ(run.clock.sleeps_ns,
            (std::vector<std::int64_t>{50'000'000, 100'000'000, 200'000'000, 400'000'000, 400'000'000}));
  EXPECT_NEAR(samples.clock_mhz, 1000, 1e-9);
  ASSERT_EQ(run.warnings.size(), 1u);
  EXPECT_NE(run.warnings[0].find("75%"), std::string::npos);
}

TEST(Sampler, ThrottlingNeverLeavesAPhaseWithoutSamples) {
  ScriptedRun run(adaptive(0.005, 0.1), [](int) { return clocked(60, 1000, true); });
  const Samples samples = run.measure();
  EXPECT_EQ(samples.milliseconds.size(), 1u);
  EXPECT_EQ(samples.discarded, 1u);
  EXPECT_EQ(samples.stop, StopReason::max_time);
}

TEST(Sampler, DiscardingStaysWithinMaxTime) {
  ScriptedRun run(adaptive(0.005, 0.1), [](int k) { return clocked(10 + k % 2, 1900, k >= 3); });
  const Samples samples = run.measure();
  EXPECT_EQ(samples.milliseconds.size(), 3u);
  EXPECT_EQ(samples.stop, StopReason::max_time);
  EXPECT_EQ(samples.discarded, 2u);  // after 32 ms, and after the pause of 50 ms
}

TEST(Sampler, TheClockIsWeightedByTime) {
  ScriptedRun run(fixed_steps(2), [](int k) { return k == 0 ? clocked(3, 1000, false) : clocked(1, 2000, false); });
  EXPECT_NEAR(run.measure().clock_mhz, 1250, 1e-9);
}

TEST(Sampler, WhatAPhaseThrowsComesThrough) {
  ScriptedRun run(fixed_steps(2), [](int) { return steady_reading(1); });
  Phase phase;
  phase.enqueue = [] { throw std::runtime_error("no"); };
  EXPECT_THROW((void)run.sampler.measure(phase), std::runtime_error);
}

int interrupted_status(bool while_warming_up) {
  install_interrupt_handler();
  Settings settings = adaptive();
  settings.warmup = 2;
  int calls = 0;
  ScriptedRun run(settings, [](int) { return steady_reading(1); });
  Phase phase;
  phase.enqueue = [&] {
    if (++calls == (while_warming_up ? 1 : 5)) std::raise(SIGINT);
  };
  try {
    (void)run.sampler.measure(phase);
  } catch (const Interrupted&) {
    return calls;
  }
  return 99;
}

TEST(SamplerDeathTest, CtrlCEndsTheSampling) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // the flag cannot be taken back: in a process of its own
  EXPECT_EXIT(std::_Exit(interrupted_status(false)), testing::ExitedWithCode(5), "");
  EXPECT_EXIT(std::_Exit(interrupted_status(true)), testing::ExitedWithCode(1), "");
}

// The steady timer, by a scripted clock.

TEST(SteadyTimer, FindsTheClocksTick) {
  ScriptedClock coarse(1000, 30);
  EXPECT_EQ(detail::SteadyTimer({}, coarse, nullptr, nullptr).tick_ns(), 1000);
  ScriptedClock fine(1, 25);
  EXPECT_EQ(detail::SteadyTimer({}, fine, nullptr, nullptr).tick_ns(), 25);
  ScriptedClock stopped(1000, 0);
  EXPECT_EQ(detail::SteadyTimer({}, stopped, nullptr, nullptr).tick_ns(), 1);
}

struct SteadyRun {
  SteadyRun(const Settings& settings, std::int64_t tick_ns, std::int64_t work_ns)
      : clock(tick_ns, 25),
        sampler(std::make_unique<detail::SteadyTimer>(StreamView{}, clock, nullptr, nullptr), clock, settings) {
    phase.enqueue = [this, work_ns] {
      ++calls;
      clock.pass_ns(work_ns);
    };
  }
  ScriptedClock clock;
  int calls = 0;
  Phase phase;
  Sampler sampler;
};

TEST(SteadyTimer, ShortCallsAreRepeatedWithinASample) {
  for (const std::int64_t warmup : {0, 10}) {
    Settings settings = fixed_steps(50);
    settings.warmup = warmup;
    SteadyRun run(settings, 1, 300);
    const Samples samples = run.sampler.measure(run.phase);
    EXPECT_EQ(samples.milliseconds.size(), 50u);
    EXPECT_GE(samples.calls_per_sample * 300, 10'000);
    EXPECT_LE(samples.calls_per_sample * 300, 110'000);
    EXPECT_NEAR(samples.statistics().median_ms, 300e-6, 300e-6 * 0.01);
  }
}

TEST(SteadyTimer, ACoarseClockNeedsMoreCalls) {
  SteadyRun run(fixed_steps(20), 1'000'000, 40'000);  // a tick of a millisecond, calls of 40 us
  const Samples samples = run.sampler.measure(run.phase);
  EXPECT_GE(samples.calls_per_sample * 40'000, 100'000'000);
  EXPECT_NEAR(samples.statistics().median_ms, 0.04, 0.0004);
}

TEST(SteadyTimer, LongCallsStandAloneAndAreAllSamples) {
  SteadyRun run(fixed_steps(5), 1, 20'000);
  const Samples samples = run.sampler.measure(run.phase);
  EXPECT_EQ(samples.calls_per_sample, 1);
  EXPECT_EQ(run.calls, 5);  // no call is wasted on finding that out
  EXPECT_NEAR(samples.statistics().median_ms, 0.02, 0.0001);
}

TEST(SteadyTimer, NothingIsRepeatedWhereThatWouldChangeTheWork) {
  SteadyRun prepared(fixed_steps(5), 1, 300);
  prepared.phase.prepare = [] {};
  EXPECT_EQ(prepared.sampler.measure(prepared.phase).calls_per_sample, 1);
  Settings cold = fixed_steps(5);
  cold.cache = CacheState::cold;
  SteadyRun flushed(cold, 1, 300);
  EXPECT_EQ(flushed.sampler.measure(flushed.phase).calls_per_sample, 1);
}

TEST(SteadyTimer, WorkNeverTakesNoTime) {
  SteadyRun run(fixed_steps(5), 1000, 100);  // under the tick, and prepare forbids repeating
  run.phase.prepare = [] {};
  for (const double ms : run.sampler.measure(run.phase).milliseconds) EXPECT_EQ(ms, 0.001);
}

TEST(SteadyTimer, AnEmptyCallEndsToo) {
  SteadyRun run(fixed_steps(3), 1, 0);
  const Samples samples = run.sampler.measure(run.phase);
  EXPECT_EQ(samples.milliseconds.size(), 3u);
  EXPECT_GT(samples.statistics().median_ms, 0);
}

// The cold cache on the CPU.

TEST(CpuCacheFlush, SizeFollowsTheCacheWithinBounds) {
  constexpr std::size_t mib = std::size_t{1} << 20;
  EXPECT_EQ(detail::flush_bytes(32 * mib, 64 * 1024 * mib), 64 * mib);
  EXPECT_EQ(detail::flush_bytes(0, 64 * 1024 * mib), 64 * mib);       // unknown
  EXPECT_EQ(detail::flush_bytes(1152 * mib, 4096 * mib), 512 * mib);  // a huge cache beside little memory
  EXPECT_EQ(detail::flush_bytes(32 * mib, 0), mib);
}

TEST(CpuCacheFlush, IsHarnessMemoryAllocatedOnce) {
  CachingAllocator allocator(Device::cpu());
  {
    detail::CpuCacheFlush flush(allocator);
    const MemoryStats before = allocator.stats();
    EXPECT_EQ(before.harness, flush.bytes());
    EXPECT_EQ(before.current.reserved, 0u);
    EXPECT_EQ(before.peak.allocated, 0u);
    for (int i = 0; i < 3; ++i) flush.flush();
    EXPECT_EQ(allocator.stats().harness, before.harness);
  }
  EXPECT_EQ(allocator.stats().harness, 0u);
}

}  // namespace
}  // namespace warpmeter::harness
