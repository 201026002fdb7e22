#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "reports/model.hpp"
#include "tools/harness/provenance.hpp"

namespace warpmeter::harness::doctor {

// What the doctor knows of a machine. Plain values: readers fill them (host_facts, nvml, libraries), judge() reads
// them, and a test can write any machine down. A field that nothing told stays empty.

/// The host, from /proc and /sys. CPU lists are logical CPUs.
struct HostFacts {
  std::string cpu;     ///< "AMD EPYC 9654"
  std::string vendor;  ///< "GenuineIntel", "AuthenticAMD"
  int family = 0, model = 0;
  bool virtual_machine = false;
  std::vector<std::string> features;  ///< of avx2, avx512f, avx512_bf16, amx_bf16: those that the CPU has
  std::string isa;                    ///< level that the kernels use: "avx512"
  std::string machine_isa;            ///< the widest level of this machine
  bool native_bf16 = false;           ///< the kernels multiply bf16 by AVX512_BF16 or AMX

  std::vector<int> present, online, allowed;  ///< CPUs: plugged in, switched on, that this process may use
  std::optional<double> cpu_quota;            ///< CPUs' worth of time that the control group allows
  int usable_cores = 0;                       ///< allowed, bounded by the quota
  int allowed_cores = 0;                      ///< physical cores among the allowed CPUs; 0: unknown
  std::optional<bool> smt;                    ///< two or more allowed CPUs share a core

  std::vector<std::string> governors;   ///< distinct ones of the allowed CPUs; empty: no frequency control is visible
  std::optional<bool> turbo;            ///< may clock above its base frequency
  std::optional<double> clock_mhz;      ///< now, mean over the allowed CPUs
  std::optional<double> max_clock_mhz;  ///< by the frequency driver

  std::vector<int> numa_nodes;  ///< that have one of the allowed CPUs
  std::size_t machine_numa_nodes = 0;
  std::size_t memory_bytes = 0, available_bytes = 0;
  std::string huge_pages;  ///< "always", "madvise", "never" (transparent huge pages)
  std::optional<double> load;
  int running = 0;             ///< threads of other programs that want to run at this moment
  bool nvidia_device = false;  ///< a display or 3D controller by NVIDIA is on the PCI bus
};

/// Bits of GpuFacts::throttle, as NVML defines them.
enum ThrottleReason : std::uint64_t {
  kThrottleIdle = 0x1,
  kThrottleApplicationClocks = 0x2,
  kThrottleSoftwarePowerCap = 0x4,
  kThrottleHardwareSlowdown = 0x8,
  kThrottleSyncBoost = 0x10,
  kThrottleSoftwareThermal = 0x20,
  kThrottleHardwareThermal = 0x40,
  kThrottlePowerBrake = 0x80,
  kThrottleDisplayClocks = 0x100,
};

inline constexpr int kBusyPercent = 10;  ///< of the time with a kernel running: someone else uses the GPU

struct GpuProcess {
  unsigned pid = 0;
  std::optional<double> memory_mib;
};

/// One GPU, from the management library (the whole GPU, where CUDA sees a slice).
struct GpuFacts {
  int nvml_index = 0;
  std::optional<int> cuda_index;  ///< none: hidden, or this program cannot use it
  std::string name, uuid, pci_bus_id;
  std::optional<int> sm;  ///< compute capability, 90
  std::optional<double> memory_mib, memory_used_mib;
  std::optional<int> clock_mhz, max_clock_mhz, memory_clock_mhz, max_memory_clock_mhz;
  std::optional<std::uint64_t> throttle;       ///< ThrottleReason bits at rest
  std::optional<std::uint64_t> load_throttle;  ///< those seen while the ceilings were measured
  std::optional<int> load_clock_mhz;           ///< lowest SM clock seen while busy then
  std::optional<int> utilization_percent;      ///< of the last sampling period, before anything was measured
  std::vector<GpuProcess> other_processes;     ///< compute processes but this one
  std::optional<bool> ecc, ecc_pending;
  std::optional<std::uint64_t> uncorrected_ecc_errors;  ///< since the driver was loaded
  std::optional<bool> mig;
  std::optional<double> power_w, power_limit_w, default_power_limit_w;
  std::optional<int> temperature_c;
  std::optional<bool> persistence;
  std::optional<int> compute_mode;  ///< 0 default, 2 prohibited, 3 exclusive process
  std::optional<int> pcie_generation, max_pcie_generation, pcie_width, max_pcie_width;
  std::optional<int> nvlinks;    ///< active ones
  std::optional<int> numa_node;  ///< of its PCI slot
};

/// How one GPU reaches another's memory.
enum class Peer : std::uint8_t { self, nvlink, pcie, none, unknown };

struct GpuSystem {
  bool library_found = false;  ///< libnvidia-ml.so.1
  std::string failure;         ///< why it gave nothing, in its own words
  bool version_mismatch = false;
  std::string driver;                    ///< "580.159.04"
  std::optional<int> driver_cuda;        ///< newest CUDA that the driver runs, 13000 is 13.0
  std::vector<GpuFacts> gpus;            ///< by NVML's index
  std::vector<std::vector<Peer>> peers;  ///< [from][to], in gpus' order
};

/// What this program itself can do with CUDA.
struct CudaFacts {
  bool built = false;
  std::optional<int> runtime;  ///< 13000 is 13.0
  int devices = 0;
  std::string unavailable;  ///< why devices is 0
};

struct LibraryFacts {
  std::string name;                   ///< "OpenBLAS"
  std::string built;                  ///< how it is part of this build; empty: left out
  std::string built_without;          ///< why it was left out
  std::optional<std::string> loaded;  ///< version or file that the loader finds now; none: not found
  std::string purpose;                ///< what it is for, "cudnn rows"
  bool needed = false;                ///< nothing runs without it
};

/// A rate that was measured, beside what the datasheet says.
struct CeilingFact {
  std::string name;  ///< "matmul_fp32_tflops"
  double measured = 0;
  std::optional<double> datasheet;
};

struct DatasheetFacts {
  std::string name;    ///< of the GPU's entry, or how a CPU's peak was computed
  std::string source;  ///< document
};

struct Facts {
  std::string tool;
  std::vector<std::string> argv;
  std::string checked_at;      ///< UTC
  std::string device;          ///< "cuda:0", "cpu": whose ceilings were measured
  std::string refused_device;  ///< why the device that was asked for is not it
  BuildInfo build;
  HostFacts host;
  GpuSystem gpu_system;
  CudaFacts cuda;
  std::map<std::string, std::string> environment;  ///< variables that change how fast things run, where set
  std::vector<LibraryFacts> libraries;
  std::vector<CeilingFact> ceilings;
  std::string ceilings_failure;  ///< why measuring them failed
  std::optional<DatasheetFacts> datasheet;

  /// The GPU that `device` names; null for the CPU, or where the management library does not know it.
  [[nodiscard]] const GpuFacts* selected_gpu() const {
    for (const GpuFacts& gpu : gpu_system.gpus) {
      if (gpu.cuda_index && device == "cuda:" + std::to_string(*gpu.cuda_index)) return &gpu;
    }
    return nullptr;
  }
};

}  // namespace warpmeter::harness::doctor
