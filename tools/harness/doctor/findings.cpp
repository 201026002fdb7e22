#include "tools/harness/doctor/findings.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/core.h>

#include "tools/harness/doctor/findings_parts.hpp"
#include "tools/harness/doctor/host_facts.hpp"
#include "tools/harness/usage_error.hpp"

namespace warpmeter::harness::doctor {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
constexpr double kLittleMemory = 0.1;   ///< of what there is
constexpr double kLoadShare = 0.5;      ///< of the CPUs, over the last minute
constexpr double kRunningShare = 0.25;  ///< of the CPUs, now
// A GPU that is well reaches 95% of its memory's rate and three quarters of its matmul's, a CPU less.
constexpr double kLowBandwidth = 0.80, kLowMatmul = 0.60, kLowCpuMatmul = 0.50, kImpossible = 1.05;

void judge_build(const Facts& facts, Findings& found) {
  const BuildInfo& build = facts.build;
  if (!build.sanitizers.empty()) {
    found.add(Severity::warning, "sanitizers", "build",
              fmt::format("built with sanitizers ({}): many times slower", build.sanitizers),
              "use the release preset for figures");
  } else if (build.build_type == "Debug") {
    found.add(Severity::warning, "debug_build", "build", "a debug build: host code is several times slower",
              "use the release preset for figures");
  }
  if (build.dirty.value_or(false)) {
    found.add(Severity::note, "dirty_build", "build",
              "built from a tree with changes: its commit does not say what was measured",
              "commit, then build again, before figures are kept");
  }
  for (const LibraryFacts& library : facts.libraries) {
    if (!library.built.empty() && !library.loaded) {
      found.add(library.needed ? Severity::broken : Severity::warning, "library_missing", library.name,
                fmt::format("{} is part of this build, but the loader does not find it now: no {}", library.name,
                            library.purpose),
                "install it, or put its folder on LD_LIBRARY_PATH");
    }
  }
}

void judge_cores(const Facts& facts, bool on_cpu, Findings& found) {
  const HostFacts& host = facts.host;
  const Severity matters = on_cpu ? Severity::warning : Severity::note;
  if (!host.allowed.empty() && host.allowed.size() < host.online.size()) {
    found.add(matters, "affinity", "host",
              fmt::format("only {} of {} CPUs may be used (affinity: {})", host.allowed.size(), host.online.size(),
                          cpu_list_text(host.allowed)),
              "figures are of those; taskset or the container's cpuset changes it");
  }
  if (host.cpu_quota && *host.cpu_quota < static_cast<double>(host.allowed.size())) {
    found.add(matters, "cpu_quota", "host",
              fmt::format("the control group allows {:.3g} CPUs' worth of time on {}: threads are stopped in between",
                          *host.cpu_quota, host.allowed.size()),
              fmt::format("set OMP_NUM_THREADS={:.0f}, or raise the container's CPU limit",
                          std::max(1.0, std::floor(*host.cpu_quota))));
  }
  if (host.online.size() < host.present.size()) {
    found.add(
        Severity::note, "cpus_offline", "host",
        fmt::format("{} of {} CPUs are switched off", host.present.size() - host.online.size(), host.present.size()),
        "echo 1 > /sys/devices/system/cpu/cpuN/online switches one on");
  }
  const auto threads_text = facts.environment.find("OMP_NUM_THREADS");
  const int threads = threads_text == facts.environment.end() ? 0 : std::atoi(threads_text->second.c_str());
  if (threads > host.usable_cores && host.usable_cores > 0) {
    found.add(
        matters, "threads_many", "environment",
        fmt::format("OMP_NUM_THREADS={} on {} usable CPUs: threads wait for each other", threads, host.usable_cores),
        fmt::format("set OMP_NUM_THREADS={} or unset it", host.usable_cores));
  } else if (threads > 0 && threads < host.usable_cores) {
    found.add(Severity::note, "threads_few", "environment",
              fmt::format("OMP_NUM_THREADS={}: {} of {} usable CPUs work", threads, threads, host.usable_cores),
              "unset it to use all");
  }
  if (on_cpu && host.smt.value_or(false) && (threads == 0 || threads > host.allowed_cores)) {
    found.add(Severity::note, "smt", "host",
              fmt::format("{} CPUs are threads of {} cores: two share a core's multipliers and caches",
                          host.allowed.size(), host.allowed_cores),
              fmt::format("try OMP_NUM_THREADS={} with OMP_PLACES=cores", host.allowed_cores));
  }
  if (on_cpu && host.numa_nodes.size() > 1 && facts.environment.count("OMP_PROC_BIND") == 0) {
    found.add(Severity::note, "numa", "host",
              fmt::format("{} NUMA nodes, and threads may move between them: memory is near or far by chance",
                          host.numa_nodes.size()),
              "OMP_PROC_BIND=close, or numactl --cpunodebind=0 --membind=0");
  }
}

void judge_clocks(const HostFacts& host, bool on_cpu, Findings& found) {
  for (const std::string& governor : host.governors) {
    if (governor == "performance") continue;
    found.add(on_cpu ? Severity::warning : Severity::note, "governor", "host",
              fmt::format("the CPU's frequency governor is '{}': clocks follow the load, and short runs see them rise",
                          governor),
              "sudo cpupower frequency-set -g performance");
  }
  if (on_cpu && host.turbo && !*host.turbo) {
    found.add(Severity::note, "turbo_off", "host", "turbo is off: steadier clocks, below what the CPU can do",
              "compare only with runs that have it off; it is a setting of the firmware or the frequency driver");
  }
}

}  // namespace

void judge_host(const Facts& facts, Findings& found) {
  const HostFacts& host = facts.host;
  const bool on_cpu = facts.device == "cpu";
  judge_cores(facts, on_cpu, found);
  judge_clocks(host, on_cpu, found);
  if (host.isa != host.machine_isa) {
    found.add(on_cpu ? Severity::warning : Severity::note, "isa_narrowed", "environment",
              fmt::format("WARPMETER_CPU_ISA narrows the CPU's kernels to {}; this machine runs {}", host.isa,
                          host.machine_isa),
              "unset WARPMETER_CPU_ISA");
  } else if (on_cpu && host.isa == "generic") {
    found.add(Severity::note, "isa_generic", "host",
              "this CPU has no AVX2: the kernels run in the compiler's base instruction set",
              "expect a fraction of what other machines reach");
  }
  if (on_cpu && host.huge_pages == "never") {
    found.add(Severity::note, "huge_pages", "host",
              "transparent huge pages are off: large tensors miss in the TLB more often",
              "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled");
  }
  // The load average remembers a minute: others must run now too.
  const auto cpus = static_cast<double>(host.online.size());
  if (host.load && *host.load > kLoadShare * cpus && host.running > kRunningShare * cpus) {
    found.add(on_cpu ? Severity::warning : Severity::note, "load", "host",
              fmt::format("other programs are running (load {:.1f} on {} CPUs): they take time away", *host.load,
                          host.online.size()),
              "wait for them (top shows which), or look at noise and min_ms");
  }
  if (host.memory_bytes > 0 &&
      static_cast<double>(host.available_bytes) < kLittleMemory * static_cast<double>(host.memory_bytes)) {
    found.add(on_cpu ? Severity::warning : Severity::note, "memory_low", "host",
              fmt::format("{:.1f} of {:.1f} GiB of memory are left", static_cast<double>(host.available_bytes) / kGiB,
                          static_cast<double>(host.memory_bytes) / kGiB),
              "end what holds it; --memory-limit keeps a sweep from swapping");
  }
}

namespace {

void judge_ceilings(const Facts& facts, Findings& found) {
  if (!facts.ceilings_failure.empty()) {
    found.add(Severity::broken, "ceilings_failed", facts.device,
              fmt::format("measuring fails: {}", facts.ceilings_failure),
              "nothing can be measured before that is mended; compute-sanitizer or dmesg may say more");
    return;
  }
  const bool on_cpu = facts.device == "cpu";
  const GpuFacts* const gpu = facts.selected_gpu();
  const bool slice = gpu != nullptr && gpu->mig.value_or(false);
  for (const CeilingFact& ceiling : facts.ceilings) {
    if (!std::isfinite(ceiling.measured)) {
      found.add(Severity::warning, "ceiling_no_room", facts.device,
                fmt::format("{} was not measured: there is no room for its buffers", ceiling.name),
                "free memory on the device, or raise --memory-limit");
      continue;
    }
    if (!ceiling.datasheet || slice) continue;
    const double share = ceiling.measured / *ceiling.datasheet;
    const bool bandwidth = ceiling.name.ends_with("_gbps");
    const char* const unit = bandwidth ? "GB/s" : "TFLOP/s";
    const double low = bandwidth ? kLowBandwidth : on_cpu ? kLowCpuMatmul : kLowMatmul;
    const std::string both = fmt::format("{} is {:.4g} {}, {:.0f}% of the {} {:.4g}", ceiling.name, ceiling.measured,
                                         unit, 100 * share, on_cpu ? "computed" : "datasheet's", *ceiling.datasheet);
    if (share < low) {
      // What a virtual machine calls a core may be half of one, and others may have it at the moment.
      const bool made_up = on_cpu && facts.host.virtual_machine;
      found.add(made_up ? Severity::note : Severity::warning, "ceiling_low", facts.device,
                both + ": less than a machine that is well gives",
                made_up ? "a virtual machine's cores may be threads, and shared: run it again to see how steady it is"
                        : "look at the findings above (clocks, power, other users); then run it again");
    } else if (share > kImpossible) {
      found.add(Severity::note, "ceiling_high", facts.device, both + ": the clock was above the one that is assumed",
                on_cpu ? "turbo, or a virtual machine that does not show its clock"
                       : "another variant of this GPU, or a clock set above the default");
    }
  }
}

}  // namespace

std::string_view name(Severity severity) noexcept {
  switch (severity) {
    case Severity::broken:
      return "broken";
    case Severity::warning:
      return "warning";
    case Severity::note:
      return "note";
  }
  return "unknown";
}

std::vector<Finding> judge(const Facts& facts) {
  Findings found;
  if (!facts.refused_device.empty()) {
    found.add(Severity::broken, "device_refused", "device", facts.refused_device,
              "see the findings about build and driver, or pick another --device");
  }
  judge_build(facts, found);
  judge_gpus(facts, found);
  judge_host(facts, found);
  judge_ceilings(facts, found);
  // What others said (a driver, a variable) may hold line breaks.
  for (Finding& finding : found.list) {
    finding.seen = one_line(finding.seen);
    finding.remedy = one_line(finding.remedy);
  }
  std::stable_sort(found.list.begin(), found.list.end(),
                   [](const Finding& a, const Finding& b) { return a.severity < b.severity; });
  return std::move(found.list);
}

}  // namespace warpmeter::harness::doctor
