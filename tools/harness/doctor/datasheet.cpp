#include "tools/harness/doctor/datasheet.hpp"

#include <algorithm>
#include <array>

#include <fmt/core.h>

namespace warpmeter::harness::doctor {
namespace {

constexpr std::string_view kA100 = "NVIDIA A100 datasheet";
constexpr std::string_view kH100 = "NVIDIA H100 datasheet";
constexpr std::string_view kH200 = "NVIDIA H200 datasheet";

// name, fp32, tf32, 16-bit (TFLOP/s), memory (GB/s), source
constexpr std::array<DatasheetEntry, 14> kGpus{{
    {"NVIDIA A100-SXM4-40GB", 19.5, 156, 312, 1555, kA100},
    {"NVIDIA A100-SXM4-80GB", 19.5, 156, 312, 2039, kA100},
    {"NVIDIA A100-PCIE-40GB", 19.5, 156, 312, 1555, kA100},
    {"NVIDIA A100 80GB PCIe", 19.5, 156, 312, 1935, kA100},
    {"NVIDIA H100 80GB HBM3", 67, 494.5, 989.5, 3350, kH100},  // SXM
    {"NVIDIA H100 PCIe", 51, 378, 756.5, 2000, kH100},
    {"NVIDIA H100 NVL", 60, 417.5, 835.5, 3900, kH100},
    {"NVIDIA H200", 67, 494.5, 989.5, 4800, kH200},  // SXM
    {"NVIDIA H200 NVL", 60, 417.5, 835.5, 4800, kH200},
    {"NVIDIA L40S", 91.6, 183, 362, 864, "NVIDIA L40S datasheet"},
    {"NVIDIA GeForce RTX 3090", 35.6, 35.6, 71, 936, "NVIDIA Ampere GA102 whitepaper"},
    {"NVIDIA GeForce RTX 4090", 82.6, 82.6, 165.2, 1008, "NVIDIA Ada whitepaper"},
    {"NVIDIA GeForce RTX 5090", 104.8, 104.8, 209.5, 1792, "NVIDIA RTX Blackwell whitepaper"},
    {"NVIDIA B200", 75, 1125, 2250, 8000, "NVIDIA HGX B200 datasheet"},
}};

constexpr double kLanes256 = 8, kLanes512 = 16;
constexpr double kFused = 2, kUnits = 2;

bool is_one_of(int model, std::initializer_list<int> models) {
  return std::find(models.begin(), models.end(), model) != models.end();
}

}  // namespace

const DatasheetEntry* find_datasheet(std::string_view gpu_name) {
  const auto* const found =
      std::find_if(kGpus.begin(), kGpus.end(), [&](const DatasheetEntry& entry) { return entry.name == gpu_name; });
  return found == kGpus.end() ? nullptr : found;
}

std::optional<double> flops_per_cycle(const HostFacts& host) {
  const bool wide = host.isa == "avx512";
  if (!wide && host.isa != "avx2") return std::nullopt;
  const double narrow = kLanes256 * kFused * kUnits;
  const double full = kLanes512 * kFused * kUnits;
  if (host.vendor == "AuthenticAMD") {
    if (host.family == 0x17) return host.model >= 0x30 ? narrow : narrow / 2;  // Zen 2; Zen and Zen+ split 256 bits
    if (host.family == 0x19) return narrow;                                    // Zen 3 and Zen 4
    const bool server_or_desktop = host.model < 0x20 || (host.model >= 0x40 && host.model < 0x50);
    if (host.family == 0x1A && server_or_desktop) return wide ? full : narrow;  // Zen 5 with whole 512-bit pipes
    return std::nullopt;
  }
  if (host.vendor != "GenuineIntel" || host.family != 6) return std::nullopt;
  // Ice Lake, Sapphire Rapids, Emerald Rapids, Granite Rapids servers. Skylake to Cooper Lake (85) have one 512-bit
  // unit or two, by the marketing name: left out.
  if (is_one_of(host.model, {106, 108, 143, 207, 173, 174})) return wide ? full : narrow;
  // Haswell, Broadwell, Skylake to Comet Lake clients and their servers without AVX-512.
  if (!wide && is_one_of(host.model, {60, 63, 69, 70, 61, 71, 79, 86, 78, 94, 142, 158, 165, 166})) return narrow;
  return std::nullopt;
}

std::optional<double> cpu_peak_tflops(const HostFacts& host) {
  const auto cycle = flops_per_cycle(host);
  const auto clock = host.max_clock_mhz ? host.max_clock_mhz : host.clock_mhz;
  const int cores = host.allowed_cores == 0 ? 0 : std::min(host.allowed_cores, host.usable_cores);
  if (!cycle || !clock || cores == 0) return std::nullopt;
  constexpr double kMhzToTera = 1e-6;
  return cores * *clock * *cycle * kMhzToTera;
}

void add_datasheet(Facts& facts, std::string_view gpu_name) {
  const auto set = [&](std::string_view ceiling, double value) {
    for (CeilingFact& fact : facts.ceilings) {
      if (fact.name == ceiling) fact.datasheet = value;
    }
  };
  if (!gpu_name.empty()) {
    const DatasheetEntry* const entry = find_datasheet(gpu_name);
    if (entry == nullptr) return;
    facts.datasheet = DatasheetFacts{std::string(entry->name), std::string(entry->source)};
    set("matmul_fp32_tflops", entry->fp32_tflops);
    set("matmul_tf32_tflops", entry->tf32_tflops);
    set("matmul_16bit_tflops", entry->half_tflops);
    set("copy_gbps", entry->memory_gbps);
    set("read_gbps", entry->memory_gbps);
    return;
  }
  const auto peak = cpu_peak_tflops(facts.host);
  if (!peak) return;
  const HostFacts& host = facts.host;
  const bool by_driver = host.max_clock_mhz.has_value();
  facts.datasheet = DatasheetFacts{
      fmt::format("{} cores x {:.0f} MHz x {:.0f} FLOPs a cycle ({})", std::min(host.allowed_cores, host.usable_cores),
                  by_driver ? *host.max_clock_mhz : *host.clock_mhz, *flops_per_cycle(host), host.isa),
      by_driver ? "highest clock by the frequency driver"
                : "clock by /proc/cpuinfo, which a virtual machine may not see change"};
  set("matmul_fp32_tflops", *peak);
}

}  // namespace warpmeter::harness::doctor
