#include "tools/harness/sampler.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <set>
#include <utility>

#include "kernels/runtime/check.hpp"
#include "tools/harness/detail/clock.hpp"
#include "tools/harness/detail/cpu_cache_flush.hpp"
#include "tools/harness/detail/steady_timer.hpp"
#include "tools/harness/detail/stopping.hpp"
#include "tools/harness/detail/timer.hpp"
#if WARPMETER_CUDA
#include "tools/harness/cuda/cuda_timers.hpp"
#endif

namespace warpmeter::harness {
namespace {

constexpr std::int64_t kMostCallsInSample = 1'000'000;
constexpr std::int64_t kFirstBackOffNs = 50'000'000;
constexpr std::int64_t kLongestBackOffNs = 400'000'000;
constexpr int kMostDiscardsInARow = 5;

Sampler::Warn or_stderr(Sampler::Warn warn) {
  if (warn) return warn;
  return [said = std::set<std::string>()](const std::string& text) mutable {
    if (said.insert(text).second) std::fprintf(stderr, "warning: %s\n", text.c_str());
  };
}

std::unique_ptr<detail::Timer> make_timer(const Context& context, const Settings& settings, const Sampler::Warn& warn) {
  const bool cold = settings.cache == CacheState::cold;
  WM_CHECK(!cold || context.allocator != nullptr, "a cold cache needs an allocator for the flush buffer");
  if (context.device().is_cuda()) {
#if WARPMETER_CUDA
    return detail::make_cuda_timer(context, settings.timer, cold, warn);
#else
    WM_CHECK(false, "a CUDA context in a build without CUDA");
#endif
  }
  (void)warn;
  std::unique_ptr<detail::CacheFlush> flush;
  if (cold) flush = std::make_unique<detail::CpuCacheFlush>(*context.allocator);
  return std::make_unique<detail::SteadyTimer>(context.stream, detail::steady_clock(), std::move(flush), nullptr);
}

}  // namespace

struct Sampler::Impl {
  Impl(const Settings& given, Warn warn_given, detail::Clock& clock_given)
      : settings(given), warn(or_stderr(std::move(warn_given))), clock(clock_given) {}

  [[nodiscard]] double seconds_since(std::int64_t start_ns) {
    return static_cast<double>(clock.now_ns() - start_ns) * 1e-9;
  }

  /// Returns the shortest call's time in ns, as far as warm-up can tell; infinity without a call.
  double warm_up(const Phase& phase, std::int64_t count, double max_time_s);
  detail::Reading take(const Phase& phase, std::int64_t calls);
  std::int64_t choose_calls(const Phase& phase, double warm_call_ns, double max_time_s,
                            std::optional<detail::Reading>& first);

  Settings settings;
  Warn warn;
  detail::Clock& clock;
  std::unique_ptr<detail::Timer> timer;
};

double Sampler::Impl::warm_up(const Phase& phase, std::int64_t count, double max_time_s) {
  const std::int64_t wanted = std::max(count, timer->least_warm_up());
  const std::int64_t start = clock.now_ns();
  double shortest_ns = std::numeric_limits<double>::infinity();
  for (std::int64_t call = 0; call < wanted; ++call) {
    throw_if_interrupted();
    if (phase.prepare) phase.prepare();
    const std::int64_t call_start = clock.now_ns();
    timer->run(phase);
    shortest_ns = std::min(shortest_ns, static_cast<double>(clock.now_ns() - call_start));
    if (call + 1 >= timer->least_warm_up() && seconds_since(start) >= max_time_s) break;
  }
  return shortest_ns;
}

detail::Reading Sampler::Impl::take(const Phase& phase, std::int64_t calls) {
  throw_if_interrupted();
  if (phase.prepare) phase.prepare();
  return timer->sample(phase, calls);
}

/// Calls that make a sample long enough for the clock. A first sample of one call that is long enough is kept.
std::int64_t Sampler::Impl::choose_calls(const Phase& phase, double warm_call_ns, double max_time_s,
                                         std::optional<detail::Reading>& first) {
  const auto shortest = static_cast<double>(timer->shortest_sample_ns());
  // Repeating would skip prepare(), or find warm what should be cold.
  if (shortest <= 0 || phase.prepare || settings.cache == CacheState::cold) return 1;
  std::int64_t calls = 1;
  const std::int64_t start = clock.now_ns();
  for (;;) {
    const detail::Reading reading = take(phase, calls);
    const double sample_ns = reading.milliseconds * 1e6;
    const bool long_enough = sample_ns >= shortest && (calls > 1 || warm_call_ns >= shortest);
    if (long_enough && calls == 1) first = reading;
    if (long_enough || calls >= kMostCallsInSample || seconds_since(start) >= max_time_s) return calls;
    // A fifth more than needed, so that the next try suffices; tenfold at most, since a first call may be slow or fast.
    const double call_ns = std::min(sample_ns / static_cast<double>(calls), warm_call_ns);
    const double wanted = 1.2 * shortest / std::max(call_ns, 1.0);
    const double bounded = std::clamp(wanted, 2.0 * static_cast<double>(calls), 10.0 * static_cast<double>(calls));
    calls = std::min(kMostCallsInSample, static_cast<std::int64_t>(std::ceil(bounded)));
  }
}

Sampler::Sampler(const Context& context, const Settings& settings, Warn warn)
    : impl_(std::make_unique<Impl>(settings, std::move(warn), detail::steady_clock())) {
  impl_->timer = make_timer(context, settings, impl_->warn);
}

Sampler::Sampler(std::unique_ptr<detail::Timer> timer, detail::Clock& clock, const Settings& settings, Warn warn)
    : impl_(std::make_unique<Impl>(settings, std::move(warn), clock)) {
  impl_->timer = std::move(timer);
}

Sampler::~Sampler() = default;

void Sampler::warm_up(const Phase& phase, std::int64_t count) {
  (void)impl_->warm_up(phase, count, impl_->settings.max_time_s);
}

Samples Sampler::measure(const Phase& phase) {
  return measure(phase, impl_->settings);
}

Samples Sampler::measure(const Phase& phase, const Settings& limits) {
  Impl& impl = *impl_;
  WM_CHECK(phase.enqueue, "a phase without work");
  impl.timer->begin();
  const double warm_call_ns = impl.warm_up(phase, limits.warmup, limits.max_time_s);
  std::optional<detail::Reading> first;
  const std::int64_t calls = impl.choose_calls(phase, warm_call_ns, limits.max_time_s, first);

  Samples samples;
  samples.calls_per_sample = calls;
  detail::StoppingRule rule(limits);
  double cycles = 0;
  double window_ns = 0;
  int discards_in_a_row = 0;
  bool judge_clock = true;
  std::int64_t back_off_ns = kFirstBackOffNs;
  std::int64_t start = impl.clock.now_ns();
  for (;;) {
    const detail::Reading reading = first ? *std::exchange(first, std::nullopt) : impl.take(phase, calls);
    if (reading.throttled && judge_clock) {
      const bool out_of_time = !limits.steps && impl.seconds_since(start) >= limits.max_time_s;
      if (out_of_time && !samples.milliseconds.empty()) {
        ++samples.discarded;
        samples.stop = StopReason::max_time;
        break;
      }
      if (!out_of_time && discards_in_a_row < kMostDiscardsInARow) {
        ++discards_in_a_row;
        ++samples.discarded;
        impl.clock.sleep_ns(back_off_ns);
        back_off_ns = std::min(2 * back_off_ns, kLongestBackOffNs);
        continue;
      }
      judge_clock = false;
      impl.warn(
          "the SM clock stays under 75% of its maximum even after pauses (power or temperature): the times are for the "
          "lower clock, see the _clock_mhz figures");
    }
    discards_in_a_row = 0;
    back_off_ns = kFirstBackOffNs;
    samples.milliseconds.push_back(reading.milliseconds / static_cast<double>(calls));
    cycles += reading.cycles;
    window_ns += reading.window_ns;
    if (const auto reason = rule.after(samples.milliseconds, impl.seconds_since(start))) {
      samples.stop = *reason;
      break;
    }
    if (phase.between) {
      const std::int64_t before = impl.clock.now_ns();
      phase.between();
      start += impl.clock.now_ns() - before;
    }
    if (limits.duty_cycle < 1) {
      impl.clock.sleep_ns(static_cast<std::int64_t>(reading.milliseconds * 1e6 * (1 / limits.duty_cycle - 1)));
    }
  }
  if (window_ns > 0) samples.clock_mhz = cycles * 1e3 / window_ns;
  return samples;
}

}  // namespace warpmeter::harness
