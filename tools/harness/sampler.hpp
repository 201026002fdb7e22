#pragma once

#include <functional>
#include <memory>
#include <string>

#include "kernels/runtime/context.hpp"
#include "tools/harness/settings.hpp"
#include "tools/harness/statistics.hpp"

namespace warpmeter::harness {

namespace detail {
class Clock;
class Timer;
}  // namespace detail

/// What one measured phase is made of.
struct Phase {
  std::function<void()> enqueue;  ///< the work; enqueues on the context's stream and does not synchronize
  std::function<void()> prepare;  ///< before every sample, outside the timed window; may be empty
  std::int64_t launches = 1;      ///< kernels that enqueue() launches at most, for the blocker's queue bound
  /// After every sample but the last; what it takes counts in no time and not towards max_time. It may measure with the
  /// same sampler where that has the steady clock, and leaves the caches as the phase does. May be empty.
  std::function<void()> between = {};
};

/// Measures phases on one device by the settings' timer, cache state and stopping rule.
///
/// device timer (CUDA): warm up, then for each sample: flush the L2 (cold), hold the stream with a blocking kernel
/// while the work is enqueued, so that launch overhead stays out, and read two events. The blocker is left out above
/// 500 launches and gives up by itself after 30 s (1 s on a phase's first sample); where launches are serialized
/// (CUDA_LAUNCH_BLOCKING, a profiler) it is left out with one warning. wall timer: the host's steady clock around
/// enqueue and a synchronize. On the CPU both are the steady clock; cold there streams through a buffer larger than
/// the last-level cache.
///
/// One sample is one call, except on the CPU with a hot cache and no prepare(): a call under 10 us (or 100 ticks of the
/// clock) is repeated within the sample until it is that long, and the samples are means of calls_per_sample calls.
/// A time below a clock's tick reads as one tick: never 0 for work that took time.
///
/// Stopping: exactly `steps` samples; or, with at least 5 samples over a quarter of max_time or 30 over a twentieth of
/// it, when the noise (IQR/median) is at most max_noise; or when max_time has passed (at least 1 sample is always
/// taken). Throws Interrupted when Ctrl-C came, and whatever the phase throws.
///
/// Duty cycle: below 1 a pause follows every sample, so long that samples take that part of the time. At its power
/// limit a device is as fast as what it did in the last tenths of a second lets it be, pauses between calls included;
/// two programs compare there when both pause for the most part.
///
/// Throttle rule (CUDA): a sample whose SM clock was under 75% of the maximum is discarded and sampling backs off for
/// 50 ms, doubling to 400 ms. After 5 in a row, or when max_time has passed without a sample, that clock is what the
/// device sustains: it is accepted for the rest of the phase, with a warning.
/// Source for blocker and throttle rule: NVIDIA nvbench, measure_cold. The flush begins as there; then it leaves the L2
/// clean, so that no sample writes the flush's lines back (CudaCacheFlush).
class Sampler {
 public:
  /// Where warnings go; by default one line on stderr, once for each text.
  using Warn = std::function<void(const std::string&)>;

  /// The flush buffer comes from context.allocator as harness memory. Throws OutOfMemory, DeviceError.
  Sampler(const Context& context, const Settings& settings, Warn warn = {});
  /// With a timer and clock of the caller's (tests: scripted times). `clock` must outlive it.
  Sampler(std::unique_ptr<detail::Timer> timer, detail::Clock& clock, const Settings& settings, Warn warn = {});
  ~Sampler();
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;

  /// Runs the phase `count` times, untimed (at least once on CUDA with the device timer: lazy loading), bounded by
  /// max_time.
  void warm_up(const Phase& phase, std::int64_t count);
  /// warm_up with the settings' count, then samples.
  [[nodiscard]] Samples measure(const Phase& phase);
  /// The same, but warmup, steps, max_noise, max_time_s and duty_cycle are those of `limits`.
  [[nodiscard]] Samples measure(const Phase& phase, const Settings& limits);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Ctrl-C came, or SIGTERM, or the terminal went; unwinds to the sweep.
struct Interrupted {};
/// Installs handlers of SIGINT, SIGTERM and, unless it is ignored (nohup), SIGHUP, which set a flag; a second SIGINT or
/// SIGTERM ends the process at once.
void install_interrupt_handler();
[[nodiscard]] bool interrupt_requested() noexcept;
/// The first signal that came, or 0; what it is to a reader: "Ctrl-C", "SIGTERM", "SIGHUP (its terminal is gone)".
[[nodiscard]] int interrupt_signal() noexcept;
[[nodiscard]] std::string interrupt_text();
void throw_if_interrupted();

}  // namespace warpmeter::harness
