#include "tools/harness/doctor/load_watch.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace warpmeter::harness::doctor {
namespace {

constexpr std::chrono::milliseconds kPollPeriod{20};

}  // namespace

LoadWatch::LoadWatch(const Nvml& nvml, std::string uuid) {
  if (!nvml.ready()) return;
  thread_ = std::thread([this, &nvml, id = std::move(uuid)] {
    do {  // at least one look, also where this thread got its core late
      const GpuLoad load = nvml.pulse(id);
      if (load.throttle && (*load.throttle & kThrottleIdle) == 0) {
        seen_ = true;
        reasons_ |= *load.throttle;
        if (load.clock_mhz) clocks_.push_back(*load.clock_mhz);
      }
      std::this_thread::sleep_for(kPollPeriod);
    } while (!stop_);
  });
}

LoadWatch::~LoadWatch() {
  stop();
}

void LoadWatch::write(GpuFacts& gpu) {
  stop();
  if (!seen_) return;
  gpu.load_throttle = reasons_;
  if (clocks_.empty()) return;
  const auto middle = clocks_.begin() + static_cast<std::ptrdiff_t>(clocks_.size() / 2);
  std::nth_element(clocks_.begin(), middle, clocks_.end());
  gpu.load_clock_mhz = *middle;
}

void LoadWatch::stop() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

}  // namespace warpmeter::harness::doctor
