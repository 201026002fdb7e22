#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "kernels/runtime/event.hpp"
#include "tools/harness/detail/blocker.hpp"
#include "tools/harness/detail/clock_probe.hpp"
#include "tools/harness/detail/timer.hpp"

namespace warpmeter::harness::detail {

/// Device time between two events, with the stream held while the work is enqueued.
///
/// The stream is not held when `blocker` is null, or for a phase of more launches than a queue surely takes. A phase's
/// first sample holds for at most a second: where something serializes launches, or the phase itself waits for the
/// stream, that hold gives up, the sample is taken again without one, and a warning says so. Twice, and no more is
/// tried for.
class EventTimer final : public Timer {
 public:
  using Warn = std::function<void(const std::string&)>;
  /// `flush`, `probe` and `blocker` may be null.
  EventTimer(StreamView stream, std::unique_ptr<CacheFlush> flush, std::unique_ptr<ClockProbe> probe,
             std::unique_ptr<Blocker> blocker, Warn warn);

  void begin() override;
  void run(const Phase& phase) override;
  [[nodiscard]] Reading sample(const Phase& phase, std::int64_t calls) override;
  /// A kernel that is loaded lazily behind a held stream would wait for it for ever: every one must have run before.
  [[nodiscard]] std::int64_t least_warm_up() const override { return 1; }

  static constexpr std::int64_t kMostHeldLaunches = 500;
  static constexpr std::int64_t kFirstHoldNs = 1'000'000'000;
  static constexpr std::int64_t kHoldNs = 30'000'000'000;
  static constexpr double kResolutionMs = 0.0005;  ///< of events, by CUDA's documentation

 private:
  StreamView stream_;
  std::unique_ptr<CacheFlush> flush_;
  std::unique_ptr<ClockProbe> probe_;
  std::unique_ptr<Blocker> blocker_;
  Warn warn_;
  Event begin_event_;
  Event end_event_;
  bool first_sample_ = true;
  bool may_hold_ = true;
  int gave_up_ = 0;
};

/// The variable by which a profiler or checker that watches this process shows in the environment's "NAME=value"
/// strings (null-terminated); empty without one.
[[nodiscard]] std::string_view watching_variable(const char* const* environment);
/// Why held streams would hang here, from the environment's "NAME=value" strings (null-terminated): launches made
/// synchronous, or a profiler or checker that serializes them. Empty when nothing says so.
[[nodiscard]] std::string serialized_launches_reason(const char* const* environment);

}  // namespace warpmeter::harness::detail
