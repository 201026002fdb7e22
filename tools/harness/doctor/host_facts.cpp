#include "tools/harness/doctor/host_facts.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <utility>

#include "kernels/ceilings/matmul.hpp"
#include "kernels/runtime/cpu_isa.hpp"
#include "kernels/runtime/detail/host_info.hpp"

namespace warpmeter::harness::doctor {
namespace {

constexpr double kKhzPerMhz = 1000.0;
constexpr std::size_t kMaxCpu = 1 << 20;

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(" \t") - begin + 1));
}

std::optional<double> number(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

bool contains(const std::vector<int>& list, int item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

/// Model, features and clocks.
void read_cpuinfo(const std::string& root, HostFacts& facts) {
  std::ifstream file(root + "/proc/cpuinfo");
  int processor = -1;
  double clocks = 0;
  int clocked = 0;
  for (std::string line; std::getline(file, line);) {
    const auto colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string key = trimmed(std::string_view(line).substr(0, colon));
    const std::string value = trimmed(std::string_view(line).substr(colon + 1));
    if (key == "processor") processor = static_cast<int>(number(value).value_or(-1));
    if (key == "cpu MHz" && (facts.allowed.empty() || contains(facts.allowed, processor))) {
      if (const auto mhz = number(value)) {
        clocks += *mhz;
        ++clocked;
      }
    }
    if (processor > 0) continue;  // one CPU stands for all
    if (key == "vendor_id") facts.vendor = value;
    if (key == "cpu family") facts.family = static_cast<int>(number(value).value_or(0));
    if (key == "model") facts.model = static_cast<int>(number(value).value_or(0));
    if (key == "flags" || key == "Features") {
      std::istringstream flags(value);
      const std::set<std::string> all{std::istream_iterator<std::string>(flags), {}};
      facts.virtual_machine = all.count("hypervisor") != 0;
      for (const char* feature : {"avx2", "avx512f", "avx512_bf16", "amx_bf16"}) {
        if (all.count(feature) != 0) facts.features.emplace_back(feature);
      }
    }
  }
  if (clocked > 0) facts.clock_mhz = clocks / clocked;
}

void read_allowed(const std::string& root, HostFacts& facts) {
  std::ifstream file(root + "/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    constexpr std::string_view kKey = "Cpus_allowed_list:";
    if (line.starts_with(kKey)) facts.allowed = parse_cpu_list(trimmed(std::string_view(line).substr(kKey.size())));
  }
}

/// Cores, threads and frequency control of the allowed CPUs.
void read_topology(const std::string& root, HostFacts& facts) {
  std::set<std::pair<std::string, std::string>> cores;
  std::set<std::string> governors;
  bool known = !facts.allowed.empty();
  for (const int cpu : facts.allowed) {
    const std::string folder = root + "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/";
    const std::string core = first_line(folder + "topology/core_id");
    known = known && !core.empty();
    cores.emplace(first_line(folder + "topology/physical_package_id"), core);
    if (const std::string governor = first_line(folder + "cpufreq/scaling_governor"); !governor.empty()) {
      governors.insert(governor);
    }
    if (const auto khz = number(first_line(folder + "cpufreq/cpuinfo_max_freq"))) {
      facts.max_clock_mhz = std::max(facts.max_clock_mhz.value_or(0), *khz / kKhzPerMhz);
    }
  }
  if (known) {
    facts.allowed_cores = static_cast<int>(cores.size());
    facts.smt = cores.size() < facts.allowed.size();
  }
  facts.governors.assign(governors.begin(), governors.end());
  const std::string cpu = root + "/sys/devices/system/cpu/";
  if (const std::string off = first_line(cpu + "intel_pstate/no_turbo"); !off.empty()) facts.turbo = off == "0";
  if (const std::string on = first_line(cpu + "cpufreq/boost"); !on.empty()) facts.turbo = on == "1";
}

void read_numa(const std::string& root, HostFacts& facts) {
  const std::string folder = root + "/sys/devices/system/node/";
  const std::vector<int> nodes = parse_cpu_list(first_line(folder + "online"));
  facts.machine_numa_nodes = nodes.size();
  for (const int node : nodes) {
    const auto cpus = parse_cpu_list(first_line(folder + "node" + std::to_string(node) + "/cpulist"));
    if (std::any_of(cpus.begin(), cpus.end(), [&](int cpu) { return contains(facts.allowed, cpu); })) {
      facts.numa_nodes.push_back(node);
    }
  }
}

bool has_nvidia_device(const std::string& root) {
  std::error_code failed;
  for (const auto& slot : std::filesystem::directory_iterator(root + "/sys/bus/pci/devices", failed)) {
    if (first_line(slot.path() / "vendor") == "0x10de" && first_line(slot.path() / "class").starts_with("0x03")) {
      return true;  // class 03: display and 3D controllers; NVIDIA's bridges and audio are others
    }
  }
  return false;
}

}  // namespace

std::vector<int> parse_cpu_list(std::string_view text) {
  std::vector<int> cpus;
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  while (at != end) {
    std::size_t first = 0;
    auto result = std::from_chars(at, end, first);
    if (result.ec != std::errc() || first > kMaxCpu) return {};
    std::size_t last = first;
    at = result.ptr;
    if (at != end && *at == '-') {
      result = std::from_chars(at + 1, end, last);
      if (result.ec != std::errc() || last < first || last > kMaxCpu) return {};
      at = result.ptr;
    }
    for (std::size_t cpu = first; cpu <= last; ++cpu) cpus.push_back(static_cast<int>(cpu));
    if (at == end) break;
    if (*at != ',' || ++at == end) return {};
  }
  return cpus;
}

std::string cpu_list_text(const std::vector<int>& cpus) {
  std::string text;
  for (std::size_t i = 0; i < cpus.size();) {
    std::size_t last = i;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    if (!text.empty()) text += ',';
    text += std::to_string(cpus[i]);
    if (last > i) text += '-' + std::to_string(cpus[last]);
    i = last + 1;
  }
  return text;
}

std::optional<int> numa_node_of_pci(const std::string& bus_id, const std::string& root) {
  if (bus_id.empty()) return std::nullopt;
  // NVML writes an eight-digit domain in capitals, the kernel a four-digit one in small letters.
  std::string slot = bus_id;
  if (const auto colon = slot.find(':'); colon != std::string::npos && colon > 4) slot.erase(0, colon - 4);
  for (char& c : slot) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const auto node = number(first_line(root + "/sys/bus/pci/devices/" + slot + "/numa_node"));
  if (!node || *node < 0) return std::nullopt;
  return static_cast<int>(*node);
}

HostFacts read_host_facts(const std::string& root) {
  HostFacts facts;
  facts.cpu = warpmeter::detail::cpu_name(root);
  const std::string cpu = root + "/sys/devices/system/cpu/";
  facts.present = parse_cpu_list(first_line(cpu + "present"));
  facts.online = parse_cpu_list(first_line(cpu + "online"));
  read_allowed(root, facts);
  read_cpuinfo(root, facts);
  read_topology(root, facts);
  read_numa(root, facts);
  facts.isa = name(cpu_isa());
  facts.machine_isa = name(machine_cpu_isa());
  facts.native_bf16 = ceilings::measured_path(ComputePath::half, Device::cpu()) == ComputePath::half;

  facts.cpu_quota = warpmeter::detail::cgroup_cpu_quota(root);
  facts.usable_cores = static_cast<int>(facts.allowed.size());
  if (facts.cpu_quota) facts.usable_cores = std::min(facts.usable_cores, static_cast<int>(std::ceil(*facts.cpu_quota)));

  const warpmeter::detail::HostMemory memory = warpmeter::detail::host_memory(root);
  facts.memory_bytes = memory.total;
  facts.available_bytes = memory.available;
  // "always [madvise] never": the brackets mark what is in force.
  const std::string pages = first_line(root + "/sys/kernel/mm/transparent_hugepage/enabled");
  const auto open = pages.find('['), close = pages.find(']');
  if (open != std::string::npos && close != std::string::npos && open < close) {
    facts.huge_pages = pages.substr(open + 1, close - open - 1);
  }
  std::ifstream load_file(root + "/proc/loadavg");  // "0.07 0.23 0.13 1/95 9451"
  double load = 0, five = 0, fifteen = 0;
  if (load_file >> load >> five >> fifteen) {
    facts.load = load;
    if (load_file >> facts.running) facts.running = std::max(0, facts.running - 1);  // this thread
  }
  facts.nvidia_device = has_nvidia_device(root);
  return facts;
}

}  // namespace warpmeter::harness::doctor
