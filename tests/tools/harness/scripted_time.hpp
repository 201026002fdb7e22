#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "tools/harness/detail/clock.hpp"
#include "tools/harness/detail/timer.hpp"

namespace warpmeter::harness {

/// A clock that moves when told to: by `read_cost_ns` at every look, and by the scripted work. Shows whole ticks only.
class ScriptedClock final : public detail::Clock {
 public:
  explicit ScriptedClock(std::int64_t tick_ns = 1, std::int64_t read_cost_ns = 0)
      : tick_ns_(tick_ns), read_cost_ns_(read_cost_ns) {}
  std::int64_t now_ns() override {
    time_ns_ += read_cost_ns_;
    return time_ns_ / tick_ns_ * tick_ns_;
  }
  void sleep_ns(std::int64_t duration_ns) override {
    sleeps_ns.push_back(duration_ns);
    time_ns_ += duration_ns;
  }
  void pass_ns(std::int64_t duration_ns) { time_ns_ += duration_ns; }
  [[nodiscard]] std::int64_t true_ns() const { return time_ns_; }

  std::vector<std::int64_t> sleeps_ns;

 private:
  std::int64_t tick_ns_, read_cost_ns_;
  std::int64_t time_ns_ = 0;
};

/// A timer whose readings follow a script: script(k) for the k-th sample. Time passes as the readings say.
class ScriptedTimer final : public detail::Timer {
 public:
  ScriptedTimer(ScriptedClock& clock, std::function<detail::Reading(int)> script, std::int64_t least_warm_up = 0)
      : clock_(clock), script_(std::move(script)), least_warm_up_(least_warm_up) {}
  void begin() override { ++phases; }
  void run(const Phase& phase) override {
    ++runs;
    phase.enqueue();
  }
  detail::Reading sample(const Phase& phase, std::int64_t calls) override {
    for (std::int64_t call = 0; call < calls; ++call) phase.enqueue();
    const detail::Reading reading = script_(samples++);
    clock_.pass_ns(static_cast<std::int64_t>(reading.milliseconds * 1e6));
    return reading;
  }
  [[nodiscard]] std::int64_t least_warm_up() const override { return least_warm_up_; }

  int phases = 0, runs = 0, samples = 0;

 private:
  ScriptedClock& clock_;
  std::function<detail::Reading(int)> script_;
  std::int64_t least_warm_up_;
};

}  // namespace warpmeter::harness
