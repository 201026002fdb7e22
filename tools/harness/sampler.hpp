#pragma once

#include <functional>
#include <memory>

#include "kernels/runtime/context.hpp"
#include "tools/harness/settings.hpp"
#include "tools/harness/statistics.hpp"

namespace warpmeter::harness {

/// What one measured phase is made of.
struct Phase {
  std::function<void()> enqueue;  ///< the work; enqueues on the context's stream and does not synchronize
  std::function<void()> prepare;  ///< before every sample, outside the timed window; may be empty
  std::int64_t launches = 1;      ///< kernels that enqueue() launches at most, for the blocker's queue bound
};

/// Measures phases on one device by the settings' timer, cache state and stopping rule.
///
/// device timer (CUDA): warm up, then for each sample: flush the L2 (cold), hold the stream with a blocking kernel
/// while the work is enqueued, so that launch overhead stays out, and read two events. The blocker is left out above
/// 500 launches and gives up by itself after 30 s. wall timer: the host's steady clock around enqueue and a
/// synchronize. On the CPU both are the steady clock; cold there streams through a buffer larger than the last-level
/// cache.
///
/// Stopping: exactly `steps` samples, or until the noise (IQR/median) of at least 5 samples is at most max_noise, or
/// max_time has passed (at least 1 sample is always taken). Throws Interrupted when Ctrl-C came.
/// Source for blocker, flush and throttle rule: NVIDIA nvbench, measure_cold.
class Sampler {
 public:
  Sampler(const Context& context, const Settings& settings);
  ~Sampler();
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;

  /// Runs the phase `count` times, untimed (at least once on CUDA with the device timer: lazy loading), bounded by
  /// max_time.
  void warm_up(const Phase& phase, std::int64_t count);
  /// warm_up with the settings' count, then samples.
  [[nodiscard]] Samples measure(const Phase& phase);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Ctrl-C came; unwinds to the sweep.
struct Interrupted {};
/// Installs SIGINT/SIGTERM handlers that set a flag (a second signal ends the process at once).
void install_interrupt_handler();
[[nodiscard]] bool interrupt_requested() noexcept;
void throw_if_interrupted();

}  // namespace warpmeter::harness
