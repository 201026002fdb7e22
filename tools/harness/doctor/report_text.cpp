#include <algorithm>
#include <cmath>

#include <fmt/core.h>

#include "tools/harness/doctor/host_facts.hpp"
#include "tools/harness/doctor/report.hpp"
#include "tools/harness/usage_error.hpp"

namespace warpmeter::harness::doctor {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
constexpr double kMibPerGib = 1024;

using Cells = std::vector<std::string>;

/// A Markdown table with its columns aligned; the first row is the header.
std::string table(const std::vector<Cells>& rows) {
  std::vector<std::size_t> widths(rows.front().size(), 3);
  for (const Cells& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    for (std::size_t i = 0; i < rows[r].size(); ++i) text += fmt::format("| {:<{}} ", rows[r][i], widths[i]);
    text += "|\n";
    if (r != 0) continue;
    for (const std::size_t width : widths) text += fmt::format("|{:-<{}}", "", width + 2);
    text += "|\n";
  }
  return text;
}

template <class T>
std::string or_unknown(const std::optional<T>& value, const char* unit = "") {
  return value ? fmt::format("{}{}", *value, unit) : std::string("unknown");
}
std::string on_off(const std::optional<bool>& value) {
  return value ? (*value ? "on" : "off") : "not there";
}
std::string cuda_version(const std::optional<int>& version) {
  return version ? fmt::format("{}.{}", *version / 1000, *version % 1000 / 10) : std::string("unknown");
}
void line(std::string& text, std::string_view key, std::string_view value) {
  if (!value.empty()) text += fmt::format("- {}: {}\n", key, one_line(value));
}

std::string plural(std::size_t n, const char* word) {
  return fmt::format("{} {}{}", n, word, n == 1 ? "" : "s");
}

void add_findings(std::string& text, const Facts& facts, const std::vector<Finding>& findings) {
  const auto count = [&](Severity severity) {
    return static_cast<std::size_t>(
        std::count_if(findings.begin(), findings.end(), [&](const Finding& f) { return f.severity == severity; }));
  };
  text += fmt::format("# {} --doctor: {}, {}, {}\n\n", facts.tool, fmt::format("{} broken", count(Severity::broken)),
                      plural(count(Severity::warning), "warning"), plural(count(Severity::note), "note"));
  for (const Finding& finding : findings) {
    text += fmt::format("- {} ({}): {}; {}\n", name(finding.severity), finding.subject, finding.seen, finding.remedy);
  }
  if (findings.empty()) text += "Nothing odd was found.\n";
}

void add_ceilings(std::string& text, const Facts& facts) {
  text += fmt::format("\n## What {} reaches\n\n", facts.device);
  if (facts.ceilings.empty()) {
    text += "Nothing was measured.\n";
    return;
  }
  std::vector<Cells> rows{{"ceiling", "measured", "datasheet", "share"}};
  for (const CeilingFact& ceiling : facts.ceilings) {
    const bool known = std::isfinite(ceiling.measured);
    rows.push_back(
        {ceiling.name, known ? fmt::format("{:.4g}", ceiling.measured) : "no room for its buffers",
         ceiling.datasheet ? fmt::format("{:.4g}", *ceiling.datasheet) : "",
         ceiling.datasheet && known ? fmt::format("{:.1f}%", 100 * ceiling.measured / *ceiling.datasheet) : ""});
  }
  text += table(rows);
  if (facts.datasheet) {
    text += fmt::format("\nDatasheet: {}; {}.\n", facts.datasheet->name, facts.datasheet->source);
  } else {
    text += "\nNo datasheet figures for this device are known here.\n";
  }
}

void add_gpu(std::string& text, const GpuFacts& gpu) {
  text += fmt::format("\n## GPU {}: {}\n\n", gpu.nvml_index, gpu.name.empty() ? "unknown" : gpu.name);
  line(text, "CUDA", gpu.cuda_index ? fmt::format("cuda:{}", *gpu.cuda_index) : "not visible to this program");
  line(text, "UUID", gpu.uuid);
  std::string slot = gpu.pci_bus_id;
  if (gpu.numa_node) slot += fmt::format(", NUMA node {}", *gpu.numa_node);
  line(text, "PCI", slot);
  if (gpu.sm) line(text, "compute capability", fmt::format("{}.{}", *gpu.sm / 10, *gpu.sm % 10));
  if (gpu.memory_mib) {
    line(text, "memory",
         fmt::format("{:.1f} GiB, {} used", *gpu.memory_mib / kMibPerGib,
                     gpu.memory_used_mib ? fmt::format("{:.1f} GiB", *gpu.memory_used_mib / kMibPerGib) : "unknown"));
  }
  line(text, "clocks",
       fmt::format("SM {} of {} MHz, memory {} of {} MHz", or_unknown(gpu.clock_mhz), or_unknown(gpu.max_clock_mhz),
                   or_unknown(gpu.memory_clock_mhz), or_unknown(gpu.max_memory_clock_mhz)));
  const auto reasons = [](const std::optional<std::uint64_t>& bits) -> std::string {
    if (!bits) return "unknown";
    std::string words = throttle_text(*bits, true);
    if (words.empty()) words = (*bits & kThrottleIdle) != 0 ? "none (idle)" : "none";
    return words;
  };
  line(text, "throttle reasons", reasons(gpu.throttle));
  if (gpu.load_throttle) {
    line(text, "under load",
         fmt::format("SM {}, throttle reasons {}", or_unknown(gpu.load_clock_mhz, " MHz"), reasons(gpu.load_throttle)));
  }
  line(text, "use",
       fmt::format("{}, other processes: {}", or_unknown(gpu.utilization_percent, "% of the time"),
                   gpu.other_processes.size()));
  std::string power;
  if (gpu.power_w) power = fmt::format("{:.0f} W", *gpu.power_w);
  if (gpu.power_limit_w) power += fmt::format("{}limit {:.0f} W", power.empty() ? "" : ", ", *gpu.power_limit_w);
  if (gpu.default_power_limit_w) power += fmt::format(" (default {:.0f} W)", *gpu.default_power_limit_w);
  if (gpu.temperature_c) power += fmt::format("{}{} degrees C", power.empty() ? "" : ", ", *gpu.temperature_c);
  line(text, "power", power);
  std::string ecc = on_off(gpu.ecc);
  if (gpu.uncorrected_ecc_errors) ecc += fmt::format(", {} uncorrectable errors", *gpu.uncorrected_ecc_errors);
  line(text, "ECC", ecc);
  line(text, "MIG", on_off(gpu.mig));
  line(text, "persistence mode", gpu.persistence ? on_off(gpu.persistence) : "unknown");
  if (gpu.pcie_width) {
    line(text, "PCIe",
         fmt::format("generation {} of {}, x{} of x{}", or_unknown(gpu.pcie_generation),
                     or_unknown(gpu.max_pcie_generation), *gpu.pcie_width, or_unknown(gpu.max_pcie_width)));
  }
  if (gpu.nvlinks) line(text, "NVLink", plural(static_cast<std::size_t>(*gpu.nvlinks), "active link"));
}

void add_peers(std::string& text, const GpuSystem& system) {
  if (system.gpus.size() < 2) return;
  text += "\n## Peer access\n\n";
  std::vector<Cells> rows{{"from \\ to"}};
  for (const GpuFacts& gpu : system.gpus) rows.front().push_back(fmt::format("GPU {}", gpu.nvml_index));
  for (std::size_t i = 0; i < system.gpus.size(); ++i) {
    Cells row{fmt::format("GPU {}", system.gpus[i].nvml_index)};
    for (std::size_t j = 0; j < system.gpus.size(); ++j) {
      const Peer peer = i < system.peers.size() && j < system.peers[i].size() ? system.peers[i][j] : Peer::unknown;
      row.emplace_back(peer == Peer::self     ? "-"
                       : peer == Peer::nvlink ? "NVLink"
                       : peer == Peer::pcie   ? "PCIe"
                       : peer == Peer::none   ? "none"
                                              : "unknown");
    }
    rows.push_back(std::move(row));
  }
  text += table(rows);
}

void add_cuda(std::string& text, const Facts& facts) {
  text += "\n## CUDA\n\n";
  line(text, "this build", facts.cuda.built ? fmt::format("with CUDA ({})", facts.build.cuda) : "without CUDA");
  if (facts.cuda.runtime) line(text, "runtime", cuda_version(facts.cuda.runtime));
  const GpuSystem& system = facts.gpu_system;
  line(text, "driver",
       system.driver.empty() ? std::string("unknown")
                             : fmt::format("{}, runs CUDA up to {}", system.driver, cuda_version(system.driver_cuda)));
  line(text, "usable devices",
       facts.cuda.devices == 0 ? fmt::format("none: {}", facts.cuda.unavailable)
                               : fmt::format("{}", facts.cuda.devices));
  line(text, "management library", system.failure.empty() ? "answers" : system.failure);
}

void add_host(std::string& text, const HostFacts& host) {
  text += "\n## Host\n\n";
  line(text, "CPU",
       fmt::format("{}{}", host.cpu.empty() ? "unknown" : host.cpu, host.virtual_machine ? " (virtual machine)" : ""));
  line(text, "instruction sets", [&] {
    std::string words;
    for (const std::string& feature : host.features) words += (words.empty() ? "" : ", ") + feature;
    return fmt::format("{}; kernels use {}, bf16 {}", words.empty() ? "none known" : words, host.isa,
                       host.native_bf16 ? "natively" : "through fp32");
  }());
  std::string cpus =
      fmt::format("{} present, {} online, {} allowed", host.present.size(), host.online.size(), host.allowed.size());
  if (host.cpu_quota) cpus += fmt::format(", {:.3g} by the control group", *host.cpu_quota);
  if (host.allowed_cores > 0)
    cpus += fmt::format(", on {}", plural(static_cast<std::size_t>(host.allowed_cores), "core"));
  line(text, "CPUs", cpus);
  std::string governor;
  for (const std::string& one : host.governors) governor += (governor.empty() ? "" : ", ") + one;
  line(text, "governor", governor.empty() ? "not visible" : governor);
  std::string clocks = host.clock_mhz ? fmt::format("{:.0f} MHz", *host.clock_mhz) : "unknown";
  if (host.max_clock_mhz) clocks += fmt::format(", at most {:.0f} MHz", *host.max_clock_mhz);
  if (host.turbo) clocks += fmt::format(", turbo {}", *host.turbo ? "on" : "off");
  line(text, "clock", clocks);
  line(text, "NUMA", fmt::format("{}, {} used", plural(host.machine_numa_nodes, "node"), host.numa_nodes.size()));
  line(text, "memory",
       fmt::format("{:.1f} GiB, {:.1f} GiB available", static_cast<double>(host.memory_bytes) / kGiB,
                   static_cast<double>(host.available_bytes) / kGiB));
  line(text, "transparent huge pages", host.huge_pages.empty() ? "unknown" : host.huge_pages);
  if (host.load) line(text, "load", fmt::format("{:.2f}", *host.load));
}

void add_build(std::string& text, const Facts& facts) {
  const BuildInfo& build = facts.build;
  text += "\n## Build\n\n";
  line(text, "version", build.project);
  line(text, "commit",
       build.git_sha.empty() ? "not built in a git checkout"
                             : build.git_sha + (build.dirty.value_or(false) ? ", with changes" : ""));
  line(text, "type", build.build_type + (build.sanitizers.empty() ? "" : ", sanitizers " + build.sanitizers));
  line(text, "compiler", build.compiler);
  for (const auto& [variable, value] : facts.environment) line(text, variable, fmt::format("'{}'", value));
  text += "\n";
  std::vector<Cells> rows{{"library", "build", "now"}};
  for (const LibraryFacts& library : facts.libraries) {
    rows.push_back({library.name, library.built.empty() ? "no: " + library.built_without : library.built,
                    library.loaded.value_or("not found")});
  }
  text += table(rows);
}

}  // namespace

std::string to_text(const Facts& facts, const std::vector<Finding>& findings) {
  std::string text;
  add_findings(text, facts, findings);
  add_ceilings(text, facts);
  for (const GpuFacts& gpu : facts.gpu_system.gpus) add_gpu(text, gpu);
  add_peers(text, facts.gpu_system);
  add_cuda(text, facts);
  add_host(text, facts.host);
  add_build(text, facts);
  return text;
}

}  // namespace warpmeter::harness::doctor
