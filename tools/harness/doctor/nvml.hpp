#pragma once

#include <memory>
#include <string>

#include "tools/harness/doctor/facts.hpp"

namespace warpmeter::harness::doctor {

/// What a GPU does at this moment.
struct GpuLoad {
  std::optional<int> clock_mhz;
  std::optional<std::uint64_t> throttle;
  std::optional<int> utilization_percent;
  std::vector<GpuProcess> other_processes;  ///< compute processes but this one
};

/// NVIDIA's management library, loaded when the object is made and never linked: programs start without it. What it
/// does not know or may not tell stays empty. Its indices are not CUDA's, so GPUs are named by UUID.
///
/// In a container the library sees no processes of others, or sees them under foreign ids; utilization still shows
/// them.
class Nvml {
 public:
  /// `library` as dlopen takes it.
  explicit Nvml(const std::string& library = "libnvidia-ml.so.1");
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  [[nodiscard]] bool ready() const;
  /// Everything, with cuda_index and numa_node left open. Milliseconds a GPU.
  [[nodiscard]] GpuSystem system() const;
  /// `uuid` as CUDA has it, "GPU-..." or "MIG-..." (then of the whole GPU). Nothing for a GPU that is not there.
  [[nodiscard]] GpuLoad load(const std::string& uuid) const;
  /// Clock and throttling alone: a fraction of a millisecond, for watching.
  [[nodiscard]] GpuLoad pulse(const std::string& uuid) const;
  /// Utilization, asked again a second later where it is high: the sampling period may hold what this user's last
  /// program did.
  [[nodiscard]] std::optional<int> settled_utilization(const std::string& uuid) const;
  /// The UUID of the whole GPU that `uuid` names; empty when there is none.
  [[nodiscard]] std::string whole_gpu(const std::string& uuid) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace warpmeter::harness::doctor
