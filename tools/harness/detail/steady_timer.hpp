#pragma once

#include <memory>

#include "kernels/runtime/stream.hpp"
#include "tools/harness/detail/clock.hpp"
#include "tools/harness/detail/clock_probe.hpp"
#include "tools/harness/detail/timer.hpp"

namespace warpmeter::harness::detail {

/// The host's clock around the work and a synchronize: every timing on the CPU, the wall timer on a GPU.
///
/// A time under the clock's tick reads as one tick, an upper bound: never 0 for work that took time. On the CPU, calls
/// too short for the clock are repeated within a sample (shortest_sample_ns) so that the clock's own cost and tick
/// stay under a percent.
class SteadyTimer final : public Timer {
 public:
  /// `flush` and `probe` may be null. Measures the clock's tick.
  SteadyTimer(StreamView stream, Clock& clock, std::unique_ptr<CacheFlush> flush, std::unique_ptr<ClockProbe> probe);

  void run(const Phase& phase) override;
  [[nodiscard]] Reading sample(const Phase& phase, std::int64_t calls) override;
  [[nodiscard]] std::int64_t shortest_sample_ns() const override;
  [[nodiscard]] std::int64_t tick_ns() const { return tick_ns_; }

  static constexpr std::int64_t kShortestSampleNs = 10'000;  ///< two clock reads, some 50 ns, are half a percent of it
  static constexpr std::int64_t kTicksInSample = 100;        ///< and a tick one percent at most

 private:
  StreamView stream_;
  Clock& clock_;
  std::unique_ptr<CacheFlush> flush_;
  std::unique_ptr<ClockProbe> probe_;
  std::int64_t tick_ns_;
};

}  // namespace warpmeter::harness::detail
