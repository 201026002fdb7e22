#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "tools/harness/doctor/nvml.hpp"

namespace warpmeter::harness::doctor {

/// Watches a GPU's clock and throttling from a thread of its own while something else keeps the GPU busy. Moments
/// without work are left out. `nvml` must outlive it.
class LoadWatch {
 public:
  /// Does nothing where the library is not ready.
  LoadWatch(const Nvml& nvml, std::string uuid);
  ~LoadWatch();
  LoadWatch(const LoadWatch&) = delete;
  LoadWatch& operator=(const LoadWatch&) = delete;

  /// Ends watching and writes load_throttle (all reasons that were seen) and load_clock_mhz (the median: the first are
  /// still rising). Leaves both open when the GPU was never seen at work.
  void write(GpuFacts& gpu);

 private:
  void stop();

  std::atomic<bool> stop_{false};
  std::uint64_t reasons_ = 0;
  bool seen_ = false;
  std::vector<int> clocks_;
  std::thread thread_;
};

}  // namespace warpmeter::harness::doctor
