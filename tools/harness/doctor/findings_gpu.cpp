// Findings about GPUs, their driver and CUDA.
#include <fmt/core.h>

#include "tools/harness/doctor/findings_parts.hpp"

namespace warpmeter::harness::doctor {
namespace {

constexpr double kHeldShare = 0.05;  ///< of the memory, before this program has any
constexpr int kHotCelsius = 85;
constexpr double kPowerSlack = 0.98;  ///< limits are set in whole watts
constexpr double kMibPerGib = 1024;
constexpr int kProhibited = 2, kExclusiveThread = 1, kExclusiveProcess = 3;

std::string cuda_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::string process_list(const std::vector<GpuProcess>& processes) {
  std::string text;
  for (const GpuProcess& process : processes) {
    if (!text.empty()) text += ", ";
    text += fmt::format("pid {}", process.pid);
    if (process.memory_mib) text += fmt::format(" ({:.0f} MiB)", *process.memory_mib);
  }
  return text;
}

bool uses_gddr(const std::string& name) {
  for (const char* hbm : {"A100", "A30", "H100", "H200", "H20", "GH200", "B100", "B200", "B300", "GB200", "V100"}) {
    if (name.find(hbm) != std::string::npos) return false;
  }
  return true;
}

void judge_use(const GpuFacts& gpu, const std::string& subject, Findings& found) {
  if (!gpu.other_processes.empty()) {
    found.add(
        Severity::warning, "gpu_shared", subject,
        fmt::format("{} other compute process{} here: {}; they take time and memory away", gpu.other_processes.size(),
                    gpu.other_processes.size() == 1 ? " is" : "es are", process_list(gpu.other_processes)),
        "end them, or pick another GPU with --device cuda:N");
  }
  if (gpu.utilization_percent && *gpu.utilization_percent >= kBusyPercent) {
    found.add(Severity::warning, "gpu_busy", subject,
              fmt::format("busy {}% of the time before anything was measured", *gpu.utilization_percent),
              "nvidia-smi shows who uses it (a container may not); wait, or pick another GPU with --device cuda:N");
  }
}

void judge_clocks(const GpuFacts& gpu, const std::string& subject, Findings& found) {
  if (gpu.throttle) {
    if (const std::string why = throttle_text(*gpu.throttle, false); !why.empty()) {
      found.add(Severity::warning, "gpu_throttled", subject, fmt::format("clocks are held down: {}", why),
                throttle_remedy(*gpu.throttle));
    }
  }
}

void judge_load(const GpuFacts& gpu, const std::string& subject, Findings& found) {
  if (!gpu.load_throttle) return;
  const std::uint64_t fresh = *gpu.load_throttle & ~gpu.throttle.value_or(0);
  if (const std::string why = throttle_text(fresh, false); !why.empty()) {
    found.add(Severity::warning, "gpu_throttled_under_load", subject,
              fmt::format("clocks were held down while the ceilings were measured: {}", why), throttle_remedy(fresh));
  }
  if ((*gpu.load_throttle & kThrottleSoftwarePowerCap) != 0) {
    const std::string limit = gpu.power_limit_w ? fmt::format(" of {:.0f} W", *gpu.power_limit_w) : "";
    found.add(Severity::note, "gpu_power_capped", subject,
              fmt::format("a large matmul meets the power limit{}{}: its rate depends on the data and the cooling",
                          limit, gpu.load_clock_mhz ? fmt::format(" (SM clock {} MHz)", *gpu.load_clock_mhz) : ""),
              "normal at full load; for steady clocks lock them lower: nvidia-smi -lgc MHZ");
  }
}

void judge_health(const GpuFacts& gpu, const std::string& subject, bool selected, Findings& found) {
  if (gpu.memory_mib && gpu.memory_used_mib && gpu.other_processes.empty() &&
      *gpu.memory_used_mib > kHeldShare * *gpu.memory_mib) {
    found.add(Severity::note, "gpu_memory_held", subject,
              fmt::format("{:.1f} of {:.1f} GiB are held by others, though no process shows",
                          *gpu.memory_used_mib / kMibPerGib, *gpu.memory_mib / kMibPerGib),
              "a container hides processes: look with nvidia-smi on the host; rows may be oom sooner");
  }
  if (gpu.power_limit_w && gpu.default_power_limit_w && *gpu.power_limit_w < kPowerSlack * *gpu.default_power_limit_w) {
    found.add(Severity::warning, "gpu_power_limit", subject,
              fmt::format("its power limit is {:.0f} W, {:.0f} W by default: slower than others of its kind",
                          *gpu.power_limit_w, *gpu.default_power_limit_w),
              fmt::format("sudo nvidia-smi -i {} -pl {:.0f}", gpu.nvml_index, *gpu.default_power_limit_w));
  }
  if (gpu.temperature_c && *gpu.temperature_c >= kHotCelsius) {
    found.add(Severity::warning, "gpu_hot", subject,
              fmt::format("{} degrees Celsius before anything was measured: it will slow down", *gpu.temperature_c),
              "let it cool, look at fans and airflow");
  }
  if (gpu.uncorrected_ecc_errors.value_or(0) > 0) {
    found.add(Severity::warning, "gpu_ecc_errors", subject,
              fmt::format("{} uncorrectable memory errors since the driver was loaded", *gpu.uncorrected_ecc_errors),
              "reset the GPU or reboot; where they return, have it replaced");
  }
  if (gpu.ecc && gpu.ecc_pending && *gpu.ecc != *gpu.ecc_pending) {
    found.add(
        Severity::note, "gpu_ecc_pending", subject,
        fmt::format("ECC is {} and will be {} after a reset", *gpu.ecc ? "on" : "off", *gpu.ecc_pending ? "on" : "off"),
        "reboot before measuring, so that later runs compare");
  }
  if (gpu.ecc && *gpu.ecc && uses_gddr(gpu.name)) {
    found.add(Severity::note, "gpu_ecc_costs", subject, "ECC is on, which takes bandwidth and room on GDDR memory",
              "compare only with runs that have it on; nvidia-smi -e 0 and a reboot turn it off");
  }
  if (gpu.mig && *gpu.mig) {
    found.add(Severity::note, "gpu_mig", subject, "MIG is on: CUDA sees slices, and the datasheet is of the whole GPU",
              fmt::format("figures are of the slice; sudo nvidia-smi -i {} -mig 0 gives the whole", gpu.nvml_index));
  }
  if (gpu.compute_mode && *gpu.compute_mode == kProhibited) {
    found.add(selected ? Severity::broken : Severity::warning, "gpu_prohibited", subject,
              "its compute mode is Prohibited: no program may use it",
              fmt::format("sudo nvidia-smi -i {} -c DEFAULT", gpu.nvml_index));
  }
  if (gpu.compute_mode && (*gpu.compute_mode == kExclusiveProcess || *gpu.compute_mode == kExclusiveThread)) {
    found.add(Severity::note, "gpu_exclusive", subject,
              "its compute mode is exclusive: one process at a time, so --isolate's children may be refused",
              fmt::format("sudo nvidia-smi -i {} -c DEFAULT", gpu.nvml_index));
  }
  // The generation is lowered at rest; the width is not.
  if (gpu.pcie_width && gpu.max_pcie_width && *gpu.pcie_width < *gpu.max_pcie_width) {
    found.add(Severity::warning, "gpu_pcie_narrow", subject,
              fmt::format("its PCIe link is x{} where both ends could x{}: copies to and from the host are slower",
                          *gpu.pcie_width, *gpu.max_pcie_width),
              "reseat the card, look at the slot and at risers; in a virtual machine the figure may be made up");
  }
  if (gpu.persistence && !*gpu.persistence) {
    found.add(Severity::note, "gpu_persistence", subject,
              "persistence mode is off: the first program after a pause starts seconds later",
              fmt::format("sudo nvidia-smi -i {} -pm 1", gpu.nvml_index));
  }
}

void judge_peers(const GpuSystem& system, Findings& found) {
  std::string pairs;
  int n = 0;
  for (std::size_t i = 0; i < system.gpus.size() && i < system.peers.size(); ++i) {
    for (std::size_t j = i + 1; j < system.gpus.size() && j < system.peers[i].size(); ++j) {
      if (system.peers[i][j] != Peer::none) continue;
      pairs += fmt::format("{}{}-{}", pairs.empty() ? "" : ", ", system.gpus[i].nvml_index, system.gpus[j].nvml_index);
      ++n;
    }
  }
  if (n == 0) return;
  found.add(Severity::note, "no_peer_access", "GPUs",
            fmt::format("{} pair{} without peer access ({}): collectives between them go through the host", n,
                        n == 1 ? "" : "s", pairs),
            "nvidia-smi topo -p2p r says why; often ACS or the IOMMU is on, or the card's kind has none");
}

}  // namespace

std::string throttle_text(std::uint64_t reasons, bool power_cap) {
  struct Word {
    std::uint64_t bit;
    const char* text;
  };
  constexpr Word kWords[] = {{kThrottleHardwareThermal, "hardware thermal slowdown"},
                             {kThrottleSoftwareThermal, "software thermal slowdown"},
                             {kThrottlePowerBrake, "power brake"},
                             {kThrottleHardwareSlowdown, "hardware slowdown"},
                             {kThrottleApplicationClocks, "application clocks or a locked clock"},
                             {kThrottleSyncBoost, "sync boost with another GPU"},
                             {kThrottleDisplayClocks, "display clocks"},
                             {kThrottleSoftwarePowerCap, "software power cap"}};
  std::string text;
  for (const Word& word : kWords) {
    if ((reasons & word.bit) == 0 || (word.bit == kThrottleSoftwarePowerCap && !power_cap)) continue;
    text += (text.empty() ? "" : ", ") + std::string(word.text);
  }
  return text;
}

std::string throttle_remedy(std::uint64_t reasons) {
  if ((reasons & (kThrottleHardwareThermal | kThrottleSoftwareThermal)) != 0) {
    return "let it cool, look at fans and airflow";
  }
  if ((reasons & kThrottlePowerBrake) != 0) return "look at the power supply and its cables";
  if ((reasons & kThrottleHardwareSlowdown) != 0)
    return "look at temperature, power supply and cables: nvidia-smi -q -d PERFORMANCE";
  if ((reasons & kThrottleApplicationClocks) != 0) {
    return "sudo nvidia-smi -rac and -rgc give the default clocks back; keep it where steady clocks are wanted";
  }
  return "nvidia-smi -q -d PERFORMANCE says more";
}

std::vector<Finding> judge_gpu(const GpuFacts& gpu, const std::string& subject) {
  Findings found;
  judge_use(gpu, subject, found);
  judge_clocks(gpu, subject, found);
  return std::move(found.list);
}

void judge_gpus(const Facts& facts, Findings& found) {
  const GpuSystem& system = facts.gpu_system;
  const bool asked_for_gpu = facts.device != "cpu";
  const bool gpu_here = !system.gpus.empty() || facts.host.nvidia_device;
  // A refused device names its reason itself; what follows says what stands behind it.
  const Severity unusable = facts.refused_device.empty() ? Severity::warning : Severity::broken;

  if (!facts.cuda.built && gpu_here) {
    found.add(unusable, "no_cuda_build", "build", "there is a GPU, but this program was built without CUDA",
              "configure with -DWARPMETER_CUDA=ON (the CUDA toolkit 12.4 or newer must be there)");
  }
  if (system.version_mismatch) {
    found.add(asked_for_gpu ? Severity::broken : unusable, "driver_mismatch", "driver",
              "the driver's library and its kernel module are of different versions: CUDA does not start",
              "reboot, or reload the nvidia kernel modules");
  } else if (facts.cuda.built && facts.cuda.devices == 0) {
    const auto visible = facts.environment.find("CUDA_VISIBLE_DEVICES");
    if (gpu_here && visible != facts.environment.end()) {
      found.add(unusable, "gpus_hidden", "environment",
                fmt::format("CUDA_VISIBLE_DEVICES is '{}': it leaves no GPU to be seen", visible->second),
                "unset CUDA_VISIBLE_DEVICES, or name indices or UUIDs that nvidia-smi -L lists");
    } else if (gpu_here) {
      found.add(unusable, "cuda_unavailable", "driver",
                fmt::format("there is a GPU, but CUDA does not work: {}", facts.cuda.unavailable),
                "install NVIDIA's driver, or start the container with --gpus all");
    } else if (!facts.refused_device.empty()) {
      found.add(Severity::broken, "no_gpu", "driver", fmt::format("no GPU: {}", facts.cuda.unavailable),
                "pick --device cpu, or a machine with a GPU and its driver");
    }
  }
  if (facts.cuda.runtime && system.driver_cuda && *system.driver_cuda / 1000 < *facts.cuda.runtime / 1000) {
    found.add(facts.cuda.devices == 0 ? Severity::broken : Severity::warning, "driver_old", "driver",
              fmt::format("driver {} runs CUDA {} at most, and this program was built with {}", system.driver,
                          cuda_text(*system.driver_cuda), cuda_text(*facts.cuda.runtime)),
              "update the driver, or build with an older toolkit");
  }
  const bool silent = !system.library_found || !system.failure.empty() || system.gpus.empty();
  if (asked_for_gpu && silent && !system.version_mismatch) {
    found.add(Severity::note, "no_nvml", "driver",
              fmt::format("NVIDIA's management library tells nothing ({}): clocks, throttling and other users of the "
                          "GPU are unknown",
                          system.failure.empty() ? "it sees no GPU" : system.failure),
              "install nvidia-utils; for a container add utility to NVIDIA_DRIVER_CAPABILITIES");
  }
  if (const auto visible = facts.environment.find("CUDA_VISIBLE_DEVICES");
      visible != facts.environment.end() && facts.cuda.devices > 0 &&
      static_cast<std::size_t>(facts.cuda.devices) < system.gpus.size()) {
    found.add(Severity::note, "visible_devices", "environment",
              fmt::format("CUDA_VISIBLE_DEVICES is '{}': {} of {} GPUs, and cuda:0 is the first of those",
                          visible->second, facts.cuda.devices, system.gpus.size()),
              "the table of GPUs shows which is which; unset it to see all");
  }
  if (const auto blocking = facts.environment.find("CUDA_LAUNCH_BLOCKING");
      asked_for_gpu && blocking != facts.environment.end() && blocking->second != "0") {
    found.add(Severity::warning, "launch_blocking", "environment",
              "CUDA_LAUNCH_BLOCKING makes every launch wait: launch overhead is in the device times",
              "unset CUDA_LAUNCH_BLOCKING");
  }
  const GpuFacts* const selected = facts.selected_gpu();
  for (const GpuFacts& gpu : system.gpus) {
    if (selected != nullptr && &gpu != selected && !gpu.cuda_index) continue;  // hidden: not this run's
    const std::string subject = fmt::format("GPU {}", gpu.nvml_index);
    judge_use(gpu, subject, found);
    judge_clocks(gpu, subject, found);
    judge_load(gpu, subject, found);
    judge_health(gpu, subject, &gpu == selected, found);
  }
  judge_peers(system, found);
}

}  // namespace warpmeter::harness::doctor
