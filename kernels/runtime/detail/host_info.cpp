#include "kernels/runtime/detail/host_info.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <limits>
#include <sstream>
#include <string_view>
#include <vector>

#include <sched.h>

namespace warpmeter::detail {
namespace {

std::optional<std::string> first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!file || !std::getline(file, line)) return std::nullopt;
  return line;
}

/// The leading number of `text`; nullopt for "max" and anything else that is not one.
std::optional<std::uint64_t> leading_number(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front())) != 0) text.remove_prefix(1);
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

std::optional<std::uint64_t> number_in(const std::string& path) {
  const auto line = first_line(path);
  return line ? leading_number(*line) : std::nullopt;
}

/// The number after `key` in a file of "key value" lines (with or without a colon).
std::optional<std::uint64_t> keyed_number(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, key.size(), key) != 0) continue;
    std::string_view rest = std::string_view(line).substr(key.size());
    if (!rest.empty() && rest.front() == ':') rest.remove_prefix(1);
    if (rest.empty() || std::isspace(static_cast<unsigned char>(rest.front())) == 0) continue;
    return leading_number(rest);
  }
  return std::nullopt;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

bool contains(const std::vector<std::string>& list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

struct CgroupLevels {
  bool version2 = false;
  std::vector<std::string> directories;  ///< this process's group first, then its ancestors up to the mount
};

/// Where this process's control group for `controller` is mounted.
CgroupLevels cgroup_levels(const std::string& root, std::string_view controller) {
  // /proc/self/cgroup: "4:memory:/path" in version 1, "0::/path" in version 2.
  CgroupLevels levels;
  std::optional<std::string> path;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (contains(split(controllers, ','), controller)) {
      path = line.substr(second + 1);
      levels.version2 = false;
      break;
    }
    if (controllers.empty()) {
      path = line.substr(second + 1);
      levels.version2 = true;
    }
  }
  if (!path) return levels;

  // /proc/self/mountinfo: "id parent major:minor root mountpoint options... - type source superoptions". `root` is the
  // part of the hierarchy that is mounted there: in a container often the container's own group.
  std::ifstream mounts(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    const auto dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    const auto left = split(line.substr(0, dash), ' ');
    const auto right = split(line.substr(dash + 3), ' ');
    if (left.size() < 5 || right.size() < 3) continue;
    const bool fits =
        levels.version2 ? right[0] == "cgroup2" : right[0] == "cgroup" && contains(split(right[2], ','), controller);
    if (!fits) continue;
    const std::string& mounted = left[3];
    const std::string mount = root + left[4];
    std::string below = *path;
    if (mounted != "/") below = below.compare(0, mounted.size(), mounted) == 0 ? below.substr(mounted.size()) : "";
    while (!below.empty() && below.back() == '/') below.pop_back();
    for (;;) {
      levels.directories.push_back(mount + below);
      if (below.empty()) break;
      below.erase(below.rfind('/') == std::string::npos ? 0 : below.rfind('/'));
    }
    break;
  }
  return levels;
}

}  // namespace

std::string cpu_name(const std::string& root) {
  std::ifstream file(root + "/proc/cpuinfo");
  std::string fallback;
  for (std::string line; std::getline(file, line);) {
    const auto colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string key = line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1);
    const auto start = line.find_first_not_of(" \t", colon + 1);
    if (start == std::string::npos) continue;
    if (key == "model name") return line.substr(start);
    if (key == "Model" || key == "Hardware") fallback = line.substr(start);
  }
  return fallback;
}

std::size_t last_level_cache_bytes(const std::string& root) {
  std::uint64_t widest_level = 0;
  std::size_t bytes = 0;
  for (int index = 0; index < 16; ++index) {
    const std::string cache = root + "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/";
    const auto level = number_in(cache + "level");
    const auto size = first_line(cache + "size");
    if (!level) break;
    if (!size || *level < widest_level || first_line(cache + "type") == "Instruction") continue;
    auto value = leading_number(*size).value_or(0);
    if (size->find('K') != std::string::npos) value <<= 10;
    if (size->find('M') != std::string::npos) value <<= 20;
    widest_level = *level;
    bytes = value;
  }
  return bytes;
}

std::optional<double> cgroup_cpu_quota(const std::string& root) {
  const CgroupLevels levels = cgroup_levels(root, "cpu");
  std::optional<double> least;
  for (const std::string& directory : levels.directories) {
    std::optional<std::uint64_t> quota, period;
    if (levels.version2) {
      const auto line = first_line(directory + "/cpu.max");  // "max 100000" or "150000 100000"
      if (!line) continue;
      quota = leading_number(*line);
      if (const auto space = line->find(' '); space != std::string::npos) period = leading_number(line->substr(space));
    } else {
      quota = number_in(directory + "/cpu.cfs_quota_us");  // -1: none
      period = number_in(directory + "/cpu.cfs_period_us");
    }
    if (!quota || !period || *quota == 0 || *period == 0) continue;
    const double cpus = static_cast<double>(*quota) / static_cast<double>(*period);
    least = least ? std::min(*least, cpus) : cpus;
  }
  return least;
}

HostMemory host_memory(const std::string& root) {
  const std::string meminfo = root + "/proc/meminfo";
  HostMemory memory;
  const std::uint64_t physical = keyed_number(meminfo, "MemTotal").value_or(0) << 10;
  memory.total = physical;
  memory.available = keyed_number(meminfo, "MemAvailable").value_or(0) << 10;

  const CgroupLevels levels = cgroup_levels(root, "memory");
  for (const std::string& directory : levels.directories) {
    const auto limit = number_in(directory + (levels.version2 ? "/memory.max" : "/memory.limit_in_bytes"));
    if (!limit || *limit >= physical) continue;  // version 1 writes a huge number for none
    memory.total = std::min<std::size_t>(memory.total, *limit);
    const auto used =
        number_in(directory + (levels.version2 ? "/memory.current" : "/memory.usage_in_bytes")).value_or(0);
    // Clean file cache counts as used but goes when memory is asked for.
    const auto cache =
        keyed_number(directory + "/memory.stat", levels.version2 ? "inactive_file" : "total_inactive_file").value_or(0);
    const std::uint64_t held = used - std::min(used, cache);
    memory.available = std::min<std::size_t>(memory.available, *limit - std::min(*limit, held));
  }
  return memory;
}

int usable_cores() {
  static const int cores = [] {
    int count = 0;
    // The kernel refuses a mask shorter than its own: grow until it fits.
    for (int cpus = 1024; cpus <= 1 << 20 && count == 0; cpus *= 2) {
      cpu_set_t* set = CPU_ALLOC(static_cast<std::size_t>(cpus));
      if (set == nullptr) break;
      const std::size_t bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(cpus));
      if (sched_getaffinity(0, bytes, set) == 0) count = CPU_COUNT_S(bytes, set);
      CPU_FREE(set);
    }
    if (const auto quota = cgroup_cpu_quota()) count = std::min(count, static_cast<int>(std::ceil(*quota)));
    return std::max(count, 1);
  }();
  return cores;
}

}  // namespace warpmeter::detail
