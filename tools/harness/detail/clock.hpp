#pragma once

#include <cstdint>

namespace warpmeter::harness::detail {

/// The host's time, replaceable so that stopping rules and timers can be tested with scripted times.
class Clock {
 public:
  virtual ~Clock() = default;
  [[nodiscard]] virtual std::int64_t now_ns() = 0;
  virtual void sleep_ns(std::int64_t duration_ns) = 0;
};

/// std::chrono::steady_clock.
[[nodiscard]] Clock& steady_clock() noexcept;

}  // namespace warpmeter::harness::detail
