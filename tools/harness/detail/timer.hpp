#pragma once

#include <cstdint>

#include "tools/harness/sampler.hpp"

namespace warpmeter::harness::detail {

/// What one sample gave.
struct Reading {
  double milliseconds = 0;  ///< of all its calls together
  double cycles = 0;        ///< SM cycles in a window around the work; 0 where unknown
  double window_ns = 0;     ///< that window's length
  bool throttled = false;   ///< the window's clock was under the throttle rule's bound

  [[nodiscard]] double clock_mhz() const { return window_ns > 0 ? cycles * 1e3 / window_ns : 0; }
};

/// One way of timing a phase. Stopping rules, warm-up and back-off are the Sampler's.
class Timer {
 public:
  virtual ~Timer() = default;
  /// A new phase begins: forget what was learnt about the last.
  virtual void begin() {}
  /// One untimed call, complete on return.
  virtual void run(const Phase& phase) = 0;
  /// One sample of `calls` calls of phase.enqueue. phase.prepare has been called before it.
  [[nodiscard]] virtual Reading sample(const Phase& phase, std::int64_t calls) = 0;
  /// A sample shorter than this is worth repeating the call in it; 0: one call a sample, whatever it takes.
  [[nodiscard]] virtual std::int64_t shortest_sample_ns() const { return 0; }
  /// Untimed calls without which a sample would not be sound.
  [[nodiscard]] virtual std::int64_t least_warm_up() const { return 0; }
};

/// Makes what the next call reads come from memory.
class CacheFlush {
 public:
  virtual ~CacheFlush() = default;
  virtual void flush() = 0;
};

}  // namespace warpmeter::harness::detail
