#pragma once

#include "kernels/runtime/stream.hpp"

namespace warpmeter::harness::detail {

/// Reads a GPU's SM clock without privileges: cycles and nanoseconds between two points of a stream.
class ClockProbe {
 public:
  virtual ~ClockProbe() = default;
  virtual void begin(StreamView stream) = 0;  ///< enqueues the first stamp
  virtual void end(StreamView stream) = 0;    ///< enqueues the second

  struct Window {
    double cycles = 0;
    double ns = 0;
  };
  /// Between the last begin and end; zeros when it could not be read. After the stream is synchronized.
  [[nodiscard]] virtual Window read() const = 0;
  /// The tick of the nanoseconds' clock.
  [[nodiscard]] virtual double resolution_ns() const = 0;
  [[nodiscard]] virtual double max_clock_mhz() const = 0;
};

/// The throttle rule: the clock was under this share of the maximum. As in nvbench.
inline constexpr double kThrottleShare = 0.75;
/// A window of fewer ticks says too little: at 10 the clock is off by a fifth at most, less than the rule's margin.
inline constexpr double kTicksToJudge = 10;

[[nodiscard]] inline bool is_throttled(const ClockProbe::Window& window, double resolution_ns, double max_clock_mhz) {
  if (window.ns < kTicksToJudge * resolution_ns || window.ns <= 0) return false;
  return window.cycles * 1e3 / window.ns < kThrottleShare * max_clock_mhz;
}

}  // namespace warpmeter::harness::detail
