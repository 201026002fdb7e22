#include "tools/harness/detail/steady_timer.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>
#include <utility>

namespace warpmeter::harness::detail {
namespace {

class SteadyClock final : public Clock {
 public:
  std::int64_t now_ns() override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  void sleep_ns(std::int64_t duration_ns) override {
    std::this_thread::sleep_for(std::chrono::nanoseconds(duration_ns));
  }
};

/// The smallest step that the clock shows, of a few.
std::int64_t measure_tick(Clock& clock) {
  constexpr int kSteps = 16;
  constexpr int kReadsPerStep = 1'000'000;  // a clock that stands still is given up on
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (int step = 0; step < kSteps; ++step) {
    const std::int64_t start = clock.now_ns();
    std::int64_t now = start;
    for (int read = 0; read < kReadsPerStep && now == start; ++read) now = clock.now_ns();
    if (now == start) break;
    least = std::min(least, now - start);
  }
  return least == std::numeric_limits<std::int64_t>::max() ? 1 : std::max<std::int64_t>(least, 1);
}

}  // namespace

Clock& steady_clock() noexcept {
  static SteadyClock clock;  // no state
  return clock;
}

SteadyTimer::SteadyTimer(StreamView stream, Clock& clock, std::unique_ptr<CacheFlush> flush,
                         std::unique_ptr<ClockProbe> probe)
    : stream_(stream),
      clock_(clock),
      flush_(std::move(flush)),
      probe_(std::move(probe)),
      tick_ns_(measure_tick(clock)) {}

void SteadyTimer::run(const Phase& phase) {
  phase.enqueue();
  synchronize(stream_);
}

Reading SteadyTimer::sample(const Phase& phase, std::int64_t calls) {
  if (flush_) flush_->flush();
  if (probe_) probe_->begin(stream_);
  synchronize(stream_);

  const std::int64_t begin = clock_.now_ns();
  for (std::int64_t call = 0; call < calls; ++call) phase.enqueue();
  synchronize(stream_);
  const std::int64_t end = clock_.now_ns();

  Reading reading;
  reading.milliseconds = static_cast<double>(std::max(end - begin, tick_ns_)) * 1e-6;
  if (probe_) {
    probe_->end(stream_);
    synchronize(stream_);
    const ClockProbe::Window window = probe_->read();
    reading.cycles = window.cycles;
    reading.window_ns = window.ns;
    reading.throttled = is_throttled(window, probe_->resolution_ns(), probe_->max_clock_mhz());
  }
  return reading;
}

std::int64_t SteadyTimer::shortest_sample_ns() const {
  // On a GPU a repeated call would overlap its launches with the last one's work: another quantity.
  if (!stream_.device.is_cpu()) return 0;
  return std::max(kShortestSampleNs, kTicksInSample * tick_ns_);
}

}  // namespace warpmeter::harness::detail
