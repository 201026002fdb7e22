#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace warpmeter::detail {

/// What the kernel says about this host and the control groups that bound this process. Every function reads afresh;
/// `root` is put before /proc and /sys (for tests).
///
/// Control groups: version 2, version 1, and both at once (each controller is in one of them). A limit of any ancestor
/// binds, so every level up to the mount is read.

/// "model name" of /proc/cpuinfo; "Model" or the machine's name on others than x86. Empty when nothing says.
[[nodiscard]] std::string cpu_name(const std::string& root = "");

/// Bytes of the largest cache level of CPU 0. 0 when unknown.
[[nodiscard]] std::size_t last_level_cache_bytes(const std::string& root = "");

/// CPU time that the control groups allow, in CPUs (1.5: 150 ms every 100 ms); nullopt when nothing bounds it.
[[nodiscard]] std::optional<double> cgroup_cpu_quota(const std::string& root = "");

struct HostMemory {
  std::size_t total = 0;      ///< MemTotal, or the smallest limit of the control groups
  std::size_t available = 0;  ///< MemAvailable, or the smallest room left: limit - usage + file cache that can go
};
[[nodiscard]] HostMemory host_memory(const std::string& root = "");

/// Threads that this process may run on at once: the affinity mask, bounded by the CPU quota rounded up. At least 1.
/// Decided at the first call.
[[nodiscard]] int usable_cores();

}  // namespace warpmeter::detail
