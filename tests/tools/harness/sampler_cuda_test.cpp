#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "kernels/ceilings/bandwidth.hpp"
#include "kernels/ceilings/matmul.hpp"
#include "kernels/ceilings/spin.hpp"
#include "kernels/runtime/allocator.hpp"
#include "kernels/runtime/stream.hpp"
#include "tools/harness/ceilings.hpp"
#include "tools/harness/cuda/cuda_timers.hpp"
#include "tools/harness/cuda/stream_kernels.hpp"
#include "tools/harness/detail/clock.hpp"
#include "tools/harness/detail/event_timer.hpp"
#include "tools/harness/sampler.hpp"

namespace warpmeter::harness {
namespace {

using std::chrono::steady_clock;

double milliseconds_since(steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(steady_clock::now() - start).count();
}

class CudaSampler : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU: " << cuda_unavailable_reason();
    stream_ = std::make_unique<Stream>(Device::cuda());
    allocator_ = std::make_unique<CachingAllocator>(Device::cuda());
    context_ = {stream_->view(), allocator_.get()};
    settings_.device = Device::cuda();
    settings_.warmup = 2;
    settings_.steps = 20;
    settings_.cache = CacheState::cold;
  }
  [[nodiscard]] Samples measure(const Phase& phase) {
    Sampler sampler(context_, settings_, [this](const std::string& text) { warnings_.push_back(text); });
    return sampler.measure(phase);
  }
  [[nodiscard]] Phase spinning(std::int64_t ns) const {
    Phase phase;
    phase.enqueue = [this, ns] { ceilings::spin_for(ns, context_.stream); };
    return phase;
  }
  [[nodiscard]] static bool launches_are_blocking() {
    const char* const value = std::getenv("CUDA_LAUNCH_BLOCKING");
    return value != nullptr && std::string(value) == "1";
  }

  std::unique_ptr<Stream> stream_;
  std::unique_ptr<CachingAllocator> allocator_;
  Context context_;
  Settings settings_;
  std::vector<std::string> warnings_;
};

TEST_F(CudaSampler, BothTimersReadASpinOfKnownLengthWithinAPercent) {
  constexpr double kSpinMs = 5;
  const Phase phase = spinning(5'000'000);
  for (const TimerKind timer : {TimerKind::device, TimerKind::wall}) {
    settings_.timer = timer;
    const Samples samples = measure(phase);
    const Statistics statistics = samples.statistics();
    std::printf("%s timer: median %.4f ms, min %.4f, max %.4f of %.1f ms; clock %.0f MHz, discarded %zu\n",
                timer == TimerKind::device ? "device" : "wall", statistics.median_ms, statistics.min_ms,
                statistics.max_ms, kSpinMs, samples.clock_mhz, samples.discarded);
    EXPECT_NEAR(statistics.median_ms, kSpinMs, 0.01 * kSpinMs);
    EXPECT_EQ(samples.milliseconds.size(), 20u);
    EXPECT_EQ(samples.calls_per_sample, 1);
  }
  EXPECT_EQ(warnings_.empty(), !launches_are_blocking());
}

TEST_F(CudaSampler, TimeWithoutSynchronizationIsFarBelow) {
  if (launches_are_blocking()) GTEST_SKIP() << "launches are synchronous here";
  const Phase phase = spinning(5'000'000);
  phase.enqueue();
  synchronize(context_.stream);
  const auto start = steady_clock::now();
  phase.enqueue();
  const double enqueue_ms = milliseconds_since(start);
  synchronize(context_.stream);
  const double synchronized_ms = milliseconds_since(start);
  std::printf("without synchronization %.4f ms, with %.4f ms\n", enqueue_ms, synchronized_ms);
  EXPECT_LT(enqueue_ms, 0.5);
  EXPECT_GE(synchronized_ms, 4.95);
}

/// Two kernels of 100 us with the host asleep for 2 ms between their launches.
Phase slowly_enqueued(const Context& context, std::int64_t launches) {
  Phase phase;
  phase.launches = launches;
  phase.enqueue = [context] {
    ceilings::spin_for(100'000, context.stream);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    ceilings::spin_for(100'000, context.stream);
  };
  return phase;
}

TEST_F(CudaSampler, HoldingTheStreamKeepsTheHostOut) {
  if (launches_are_blocking()) GTEST_SKIP() << "launches are synchronous here";
  const Samples held = measure(slowly_enqueued(context_, 2));
  EXPECT_NEAR(held.statistics().median_ms, 0.2, 0.02);
  const Samples free = measure(slowly_enqueued(context_, 501));  // more than a queue surely takes: not held
  EXPECT_GE(free.statistics().median_ms, 2.0);
  std::printf("host asleep for 2 ms: held %.4f ms, not held %.4f ms\n", held.statistics().median_ms,
              free.statistics().median_ms);
}

TEST_F(CudaSampler, APhaseThatSynchronizesCostsASecondNotHalfAMinute) {
  if (launches_are_blocking()) GTEST_SKIP() << "launches are synchronous here";
  Phase phase = spinning(1'000'000);
  phase.enqueue = [spin = phase.enqueue, this] {
    spin();
    synchronize(context_.stream);
  };
  const auto start = steady_clock::now();
  const Samples samples = measure(phase);
  const double total_ms = milliseconds_since(start);
  EXPECT_NEAR(samples.statistics().median_ms, 1.0, 0.05);
  EXPECT_EQ(samples.milliseconds.size(), 20u);
  EXPECT_EQ(warnings_.size(), 1u);
  EXPECT_GE(total_ms, 1000);
  EXPECT_LT(total_ms, 5000);
}

TEST_F(CudaSampler, AnExceptionLeavesTheStreamUsable) {
  Phase phase = spinning(1'000'000);
  int calls = 0;
  phase.enqueue = [&, spin = phase.enqueue] {
    spin();
    if (++calls == 5) throw std::runtime_error("no");
  };
  const auto start = steady_clock::now();
  EXPECT_THROW((void)measure(phase), std::runtime_error);
  synchronize(context_.stream);
  EXPECT_LT(milliseconds_since(start), 5000);
  EXPECT_NEAR(measure(spinning(1'000'000)).statistics().median_ms, 1.0, 0.05);
}

// Run with CUDA_LAUNCH_BLOCKING=1 (see CMakeLists.txt) this shows that a hold gives up even where nothing warned.
TEST_F(CudaSampler, AnUnannouncedSerializationEndsTheHold) {
  std::vector<std::string> warnings;
  detail::EventTimer timer(context_.stream, nullptr, nullptr, detail::make_cuda_blocker(context_.stream),
                           [&](const std::string& text) { warnings.push_back(text); });
  const Phase phase = spinning(1'000'000);
  timer.run(phase);
  const auto start = steady_clock::now();
  for (int i = 0; i < 5; ++i) EXPECT_NEAR(timer.sample(phase, 1).milliseconds, 1.0, 0.05);
  EXPECT_LT(milliseconds_since(start), 5000);
  EXPECT_EQ(warnings.size(), launches_are_blocking() ? 1u : 0u);
}

TEST_F(CudaSampler, ReadsTheClock) {
  settings_.steps = 5;
  const double clock_mhz = measure(spinning(20'000'000)).clock_mhz;
  const int max_mhz = properties(Device::cuda()).max_clock_mhz;
  std::printf("clock %.1f MHz, maximum %d MHz\n", clock_mhz, max_mhz);
  EXPECT_GT(clock_mhz, 0.2 * max_mhz);
  EXPECT_LT(clock_mhz, 1.02 * max_mhz);
  const auto probe = detail::make_cuda_clock_probe(context_);
  EXPECT_GT(probe->resolution_ns(), 0);
  std::printf("globaltimer ticks: %.0f ns\n", probe->resolution_ns());
}

/// Times reading a buffer that fits in the L2, behind a flush of `flush_bytes` (0: none).
double read_ms(const Context& context, ceilings::ReadWorkload& work, std::size_t flush_bytes) {
  std::unique_ptr<detail::CacheFlush> flush;
  if (flush_bytes > 0) flush = std::make_unique<detail::CudaCacheFlush>(context, flush_bytes);
  auto timer = std::make_unique<detail::EventTimer>(context.stream, std::move(flush), nullptr,
                                                    detail::make_cuda_blocker(context.stream), nullptr);
  Settings settings;
  settings.steps = 101;
  Sampler sampler(std::move(timer), detail::steady_clock(), settings);
  Phase phase;
  phase.enqueue = [&] { work.enqueue(1); };
  return sampler.measure(phase).statistics().median_ms;
}

TEST_F(CudaSampler, AFlushOfTheCachesSizeIsEnough) {
  if (launches_are_blocking()) GTEST_SKIP() << "launch overhead is in the times here";
  const std::size_t cache = properties(Device::cuda()).last_level_cache_bytes;
  const auto work = ceilings::make_read(context_, cache / 2 / 4096 * 4096);
  const double hot = read_ms(context_, *work, 0);
  const double half = read_ms(context_, *work, cache / 2);
  const double one = read_ms(context_, *work, cache);
  const double two = read_ms(context_, *work, 2 * cache);
  const double four = read_ms(context_, *work, 4 * cache);
  std::printf("reading half the L2 (%zu MiB): hot %.4f ms; flushed by 0.5x %.4f, 1x %.4f, 2x %.4f, 4x %.4f\n",
              cache >> 20, hot, half, one, two, four);
  EXPECT_GT(one, 1.2 * hot);
  EXPECT_NEAR(one, four, 0.05 * four + detail::EventTimer::kResolutionMs);
}

// A sample that only reads must not pay for what the flush has written: it takes as long as behind an L2 whose lines
// have all been read, however often.
TEST_F(CudaSampler, AFlushLeavesNothingToWriteBack) {
  if (launches_are_blocking()) GTEST_SKIP() << "launch overhead is in the times here";
  const std::size_t cache = properties(Device::cuda()).last_level_cache_bytes;
  const auto work = ceilings::make_read(context_, 4 * cache / 4096 * 4096);  // displaces whatever is there
  const auto after = [&](const std::function<void()>& prepare) {
    detail::EventTimer timer(context_.stream, nullptr, nullptr, detail::make_cuda_blocker(context_.stream), nullptr);
    Phase phase;
    phase.enqueue = [&] { work->enqueue(1); };
    timer.run(phase);
    timer.begin();
    std::vector<double> times;
    for (int i = 0; i < 51; ++i) {
      prepare();
      times.push_back(timer.sample(phase, 1).milliseconds);
    }
    std::nth_element(times.begin(), times.begin() + 25, times.end());
    return times[25];
  };
  detail::CudaCacheFlush flush(context_, cache);
  const auto other = ceilings::make_read(context_, 8 * cache / 4096 * 4096);
  void* const written = allocator_->allocate_for_harness(cache);
  const double flushed = after([&] { flush.flush(); });
  const double read_only = after([&] { other->enqueue(1); });
  const double dirty = after([&] { fill_bytes(written, Device::cuda(), 0, cache, context_.stream); });
  allocator_->free_for_harness(written, cache);
  std::printf("reading four times the L2: after a flush %.4f ms, after reads %.4f, after a memset %.4f\n", flushed,
              read_only, dirty);
  EXPECT_NEAR(flushed, read_only, 0.03 * read_only + detail::EventTimer::kResolutionMs);
  EXPECT_GT(dirty, flushed);
}

// Which is why what a sample leaves there is not in its own time either.
TEST_F(CudaSampler, ColdSamplesMayLeaveACacheOfResultsUnwritten) {
  const std::size_t cache = properties(Device::cuda()).last_level_cache_bytes;
  Settings settings;
  settings.device = Device::cuda();
  settings.cache = CacheState::cold;
  EXPECT_EQ(Ceilings(context_, settings).unwritten_bytes(), cache);
  settings.cache = CacheState::hot;
  EXPECT_EQ(Ceilings(context_, settings).unwritten_bytes(), 0u);
}

TEST_F(CudaSampler, ColdAndHotAreToldApart) {
  const std::size_t cache = properties(Device::cuda()).last_level_cache_bytes;
  const auto work = ceilings::make_read(context_, cache / 4 / 4096 * 4096);
  Phase phase;
  phase.enqueue = [&] { work->enqueue(1); };
  settings_.steps = 51;
  const double cold = measure(phase).statistics().median_ms;
  EXPECT_EQ(allocator_->stats().current.reserved, 0u);  // the flush buffer is the harness's
  settings_.cache = CacheState::hot;
  const double hot = measure(phase).statistics().median_ms;
  std::printf("reading a quarter of the L2: cold %.4f ms, hot %.4f ms\n", cold, hot);
  EXPECT_GT(cold, hot);
}

TEST_F(CudaSampler, AdaptiveStopsByNoiseOnSteadyWork) {
  settings_.steps.reset();
  const Samples samples = measure(spinning(1'000'000));
  EXPECT_EQ(samples.stop, StopReason::noise);
  EXPECT_GE(samples.milliseconds.size(), 30u);
  EXPECT_LE(samples.statistics().noise, settings_.max_noise);
}

TEST_F(CudaSampler, AWatchedProcessMeasuresNoCeilings) {
  ::setenv("NV_SANITIZER_INJECTION_TEST", "1", 1);
  Ceilings ceilings(context_, settings_);
  const auto start = steady_clock::now();
  EXPECT_TRUE(std::isnan(ceilings.matmul_tflops(ComputePath::half)));
  EXPECT_TRUE(std::isnan(ceilings.copy_gbps()));
  EXPECT_TRUE(std::isnan(ceilings.read_gbps()));
  EXPECT_LT(milliseconds_since(start), 10);
  EXPECT_TRUE(ceilings.measured().empty());
  ::unsetenv("NV_SANITIZER_INJECTION_TEST");
}

TEST_F(CudaSampler, CeilingsOfThisGpu) {
  if (launches_are_blocking()) GTEST_SKIP() << "launch overhead is in the times here";
  if (!detail::watching_variable(environ).empty()) GTEST_SKIP() << "a profiler or checker watches";
  Ceilings ceilings(context_, settings_);
  const auto start = steady_clock::now();
  const double copy = ceilings.copy_gbps();
  const double read = ceilings.read_gbps();
  const double bandwidth_ms = milliseconds_since(start);
  const double fp32 = ceilings.matmul_tflops(ComputePath::fp32);
  const double tf32 = ceilings.matmul_tflops(ComputePath::tf32);
  const double half = ceilings.matmul_tflops(ComputePath::half);
  std::printf("fp32 %.1f, tf32 %.1f, 16-bit %.1f TFLOP/s; copy %.0f, read %.0f GB/s; in %.2f s (bandwidth %.2f s)\n",
              fp32, tf32, half, copy, read, milliseconds_since(start) * 1e-3, bandwidth_ms * 1e-3);
  EXPECT_GT(fp32, 0.5);
  EXPECT_GT(tf32, fp32);  // from compute capability 8.0 on
  EXPECT_GT(half, tf32);
  EXPECT_GT(copy, 20);
  EXPECT_GT(read, 0.9 * copy);
  EXPECT_DOUBLE_EQ(ceilings.matmul_tflops(ComputePath::tf32x3), tf32 / 3);
  EXPECT_EQ(allocator_->stats().current.reserved, 0u);
  EXPECT_LT(milliseconds_since(start), 20'000);

  // Each way, so that one that is never the fastest can be seen and left out.
  Settings settings = settings_;
  settings.cache = CacheState::hot;
  Sampler sampler(context_, settings);
  const auto list = [&](ceilings::Workload& work, double unit) {
    for (int variant = 0; variant < work.variants(); ++variant) {
      Phase phase;
      phase.enqueue = [&] { work.enqueue(variant); };
      const Statistics statistics = sampler.measure(phase).statistics();
      std::printf("  %-48s best %8.1f, median %8.1f\n", work.variant_name(variant).c_str(),
                  work.amount() / statistics.min_ms / unit, work.amount() / statistics.median_ms / unit);
    }
  };
  list(*ceilings::make_copy(context_), 1e6);
  list(*ceilings::make_read(context_), 1e6);
  for (const ComputePath path : {ComputePath::fp32, ComputePath::tf32, ComputePath::half}) {
    list(*ceilings::make_matmul(context_, path), 1e9);
  }
}

}  // namespace
}  // namespace warpmeter::harness
