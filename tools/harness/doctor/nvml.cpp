#include "tools/harness/doctor/nvml.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>

#include <dlfcn.h>
#include <unistd.h>

namespace warpmeter::harness::doctor {
namespace {

// The declarations of nvml.h that are used: the header is not part of every toolkit. Source: NVML API Reference Guide.
using Handle = void*;
using Status = int;
constexpr Status kSuccess = 0;
constexpr Status kLibraryMismatch = 18;
constexpr int kClockSm = 1, kClockMemory = 2;
constexpr int kUncorrected = 1, kVolatile = 0;
constexpr int kTemperatureGpu = 0;
/// "between 1/6 second and 1 second, depending on the product".
constexpr std::chrono::milliseconds kSamplingPeriod{1100};
constexpr int kPeerRead = 0, kPeerNvlink = 2;
constexpr unsigned kMaxNvlinks = 18;
constexpr unsigned kMaxProcesses = 256;
constexpr double kMiB = 1024.0 * 1024.0;
constexpr double kMilliwatts = 1000.0;
constexpr std::uint64_t kUnknownMemory = ~std::uint64_t{0};

struct Utilization {
  unsigned gpu = 0, memory = 0;
};
struct Memory {
  unsigned long long total = 0, free = 0, used = 0;
};
struct Process {
  unsigned pid = 0;
  unsigned long long used_bytes = 0;
  unsigned gpu_instance = 0, compute_instance = 0;
};
struct PciInfo {
  char legacy_bus_id[16] = "";
  unsigned domain = 0, bus = 0, device = 0, device_id = 0, subsystem_id = 0;
  char bus_id[32] = "";
};

}  // namespace

struct Nvml::Impl {
  void* library = nullptr;
  std::string failure;
  bool mismatch = false;
  bool ready = false;

  Status (*init)() = nullptr;
  const char* (*error_string)(Status) = nullptr;
  Status (*driver_version)(char*, unsigned) = nullptr;
  Status (*cuda_version)(int*) = nullptr;
  Status (*count)(unsigned*) = nullptr;
  Status (*by_index)(unsigned, Handle*) = nullptr;
  Status (*by_uuid)(const char*, Handle*) = nullptr;
  Status (*parent_of_slice)(Handle, Handle*) = nullptr;
  Status (*name)(Handle, char*, unsigned) = nullptr;
  Status (*uuid)(Handle, char*, unsigned) = nullptr;
  Status (*pci)(Handle, PciInfo*) = nullptr;
  Status (*capability)(Handle, int*, int*) = nullptr;
  Status (*memory)(Handle, Memory*) = nullptr;
  Status (*clock)(Handle, int, unsigned*) = nullptr;
  Status (*max_clock)(Handle, int, unsigned*) = nullptr;
  Status (*throttle)(Handle, unsigned long long*) = nullptr;
  Status (*utilization)(Handle, Utilization*) = nullptr;
  Status (*processes)(Handle, unsigned*, Process*) = nullptr;
  Status (*ecc)(Handle, int*, int*) = nullptr;
  Status (*ecc_errors)(Handle, int, int, unsigned long long*) = nullptr;
  Status (*mig)(Handle, unsigned*, unsigned*) = nullptr;
  Status (*power)(Handle, unsigned*) = nullptr;
  Status (*power_limit)(Handle, unsigned*) = nullptr;
  Status (*default_power_limit)(Handle, unsigned*) = nullptr;
  Status (*temperature)(Handle, int, unsigned*) = nullptr;
  Status (*persistence)(Handle, int*) = nullptr;
  Status (*compute_mode)(Handle, int*) = nullptr;
  Status (*pcie_generation)(Handle, unsigned*) = nullptr;
  Status (*max_pcie_generation)(Handle, unsigned*) = nullptr;
  Status (*pcie_width)(Handle, unsigned*) = nullptr;
  Status (*max_pcie_width)(Handle, unsigned*) = nullptr;
  Status (*nvlink_state)(Handle, unsigned, int*) = nullptr;
  Status (*peer_status)(Handle, Handle, int, int*) = nullptr;

  explicit Impl(const std::string& path) {
    library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // stays loaded: it keeps state of its own
    if (library == nullptr) {
      const char* why = dlerror();
      failure = why == nullptr ? "it could not be loaded" : why;
      return;
    }
    load("nvmlErrorString", error_string);
    if (!load("nvmlInit_v2", init) || !load("nvmlDeviceGetCount_v2", count) ||
        !load("nvmlDeviceGetHandleByIndex_v2", by_index) || !load("nvmlDeviceGetHandleByUUID", by_uuid) ||
        !load("nvmlDeviceGetUUID", uuid)) {
      failure = "it lacks functions that it has had for years";
      return;
    }
    load("nvmlSystemGetDriverVersion", driver_version);
    load("nvmlSystemGetCudaDriverVersion_v2", cuda_version);
    load("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", parent_of_slice);
    load("nvmlDeviceGetName", name);
    load("nvmlDeviceGetPciInfo_v3", pci);
    load("nvmlDeviceGetCudaComputeCapability", capability);
    load("nvmlDeviceGetMemoryInfo", memory);
    load("nvmlDeviceGetClockInfo", clock);
    load("nvmlDeviceGetMaxClockInfo", max_clock);
    // Renamed in driver 535; the old name is kept beside the new one.
    if (!load("nvmlDeviceGetCurrentClocksEventReasons", throttle)) {
      load("nvmlDeviceGetCurrentClocksThrottleReasons", throttle);
    }
    load("nvmlDeviceGetUtilizationRates", utilization);
    if (!load("nvmlDeviceGetComputeRunningProcesses_v3", processes)) {
      load("nvmlDeviceGetComputeRunningProcesses_v2", processes);
    }
    load("nvmlDeviceGetEccMode", ecc);
    load("nvmlDeviceGetTotalEccErrors", ecc_errors);
    load("nvmlDeviceGetMigMode", mig);
    load("nvmlDeviceGetPowerUsage", power);
    load("nvmlDeviceGetEnforcedPowerLimit", power_limit);
    load("nvmlDeviceGetPowerManagementDefaultLimit", default_power_limit);
    load("nvmlDeviceGetTemperature", temperature);
    load("nvmlDeviceGetPersistenceMode", persistence);
    load("nvmlDeviceGetComputeMode", compute_mode);
    load("nvmlDeviceGetCurrPcieLinkGeneration", pcie_generation);
    load("nvmlDeviceGetMaxPcieLinkGeneration", max_pcie_generation);
    load("nvmlDeviceGetCurrPcieLinkWidth", pcie_width);
    load("nvmlDeviceGetMaxPcieLinkWidth", max_pcie_width);
    load("nvmlDeviceGetNvLinkState", nvlink_state);
    load("nvmlDeviceGetP2PStatus", peer_status);

    const Status status = init();
    ready = status == kSuccess;
    mismatch = status == kLibraryMismatch;
    if (!ready) failure = error_string == nullptr ? "error " + std::to_string(status) : error_string(status);
  }

  template <class Function>
  bool load(const char* symbol, Function& function) const {
    function = reinterpret_cast<Function>(dlsym(library, symbol));
    return function != nullptr;
  }

  static std::optional<int> number(Status (*query)(Handle, unsigned*), Handle gpu) {
    unsigned value = 0;
    if (query == nullptr || query(gpu, &value) != kSuccess) return std::nullopt;
    return static_cast<int>(value);
  }
  static std::optional<int> number(Status (*query)(Handle, int, unsigned*), Handle gpu, int kind) {
    unsigned value = 0;
    if (query == nullptr || query(gpu, kind, &value) != kSuccess) return std::nullopt;
    return static_cast<int>(value);
  }
  static std::optional<int> signed_number(Status (*query)(Handle, int*), Handle gpu) {
    int value = 0;
    if (query == nullptr || query(gpu, &value) != kSuccess) return std::nullopt;
    return value;
  }
  static std::optional<double> watts(Status (*query)(Handle, unsigned*), Handle gpu) {
    unsigned value = 0;
    if (query == nullptr || query(gpu, &value) != kSuccess) return std::nullopt;
    return value / kMilliwatts;
  }
  static std::string text(Status (*query)(Handle, char*, unsigned), Handle gpu) {
    std::array<char, 128> value{};
    if (query == nullptr || query(gpu, value.data(), value.size() - 1) != kSuccess) return "";
    return value.data();
  }
  std::optional<std::uint64_t> throttle_of(Handle gpu) const {
    unsigned long long reasons = 0;
    if (throttle == nullptr || throttle(gpu, &reasons) != kSuccess) return std::nullopt;
    return reasons;
  }
  std::optional<int> utilization_of(Handle gpu) const {
    Utilization rates;
    if (utilization == nullptr || utilization(gpu, &rates) != kSuccess) return std::nullopt;
    return static_cast<int>(rates.gpu);
  }
  std::vector<GpuProcess> others_of(Handle gpu) const {
    std::vector<GpuProcess> others;
    if (processes == nullptr) return others;
    std::vector<Process> found(kMaxProcesses);
    unsigned n = kMaxProcesses;
    if (processes(gpu, &n, found.data()) != kSuccess) return others;
    for (unsigned i = 0; i < std::min(n, kMaxProcesses); ++i) {
      const Process& process = found[i];
      if (process.pid == static_cast<unsigned>(getpid())) continue;
      GpuProcess other{process.pid, std::nullopt};
      if (process.used_bytes != kUnknownMemory) other.memory_mib = static_cast<double>(process.used_bytes) / kMiB;
      others.push_back(other);
    }
    return others;
  }
  std::optional<int> nvlinks_of(Handle gpu) const {
    if (nvlink_state == nullptr) return std::nullopt;
    int active = 0;
    bool answered = false;
    for (unsigned link = 0; link < kMaxNvlinks; ++link) {
      int on = 0;
      if (nvlink_state(gpu, link, &on) != kSuccess) break;
      answered = true;
      active += on != 0 ? 1 : 0;
    }
    return answered ? std::optional<int>(active) : std::nullopt;
  }
  Peer peer_of(Handle from, Handle to) const {
    if (from == to) return Peer::self;
    int status = 0;
    if (peer_status == nullptr) return Peer::unknown;
    if (peer_status(from, to, kPeerNvlink, &status) == kSuccess && status == 0) return Peer::nvlink;
    if (peer_status(from, to, kPeerRead, &status) != kSuccess) return Peer::unknown;
    return status == 0 ? Peer::pcie : Peer::none;
  }

  /// Null when `id` names nothing.
  Handle find(const std::string& id) const {
    Handle gpu = nullptr;
    if (!ready || by_uuid(id.c_str(), &gpu) != kSuccess) return nullptr;
    Handle parent = nullptr;
    const bool is_slice = id.starts_with("MIG-");
    if (is_slice && parent_of_slice != nullptr && parent_of_slice(gpu, &parent) == kSuccess) return parent;
    return gpu;
  }

  GpuFacts facts_of(Handle gpu) const {
    GpuFacts facts;
    facts.name = text(name, gpu);
    facts.uuid = text(uuid, gpu);
    if (PciInfo slot; pci != nullptr && pci(gpu, &slot) == kSuccess) facts.pci_bus_id = slot.bus_id;
    if (int major = 0, minor = 0; capability != nullptr && capability(gpu, &major, &minor) == kSuccess) {
      facts.sm = 10 * major + minor;
    }
    if (Memory bytes; memory != nullptr && memory(gpu, &bytes) == kSuccess) {
      facts.memory_mib = static_cast<double>(bytes.total) / kMiB;
      facts.memory_used_mib = static_cast<double>(bytes.used) / kMiB;
    }
    facts.clock_mhz = number(clock, gpu, kClockSm);
    facts.max_clock_mhz = number(max_clock, gpu, kClockSm);
    facts.memory_clock_mhz = number(clock, gpu, kClockMemory);
    facts.max_memory_clock_mhz = number(max_clock, gpu, kClockMemory);
    facts.throttle = throttle_of(gpu);
    facts.other_processes = others_of(gpu);
    if (int now = 0, pending = 0; ecc != nullptr && ecc(gpu, &now, &pending) == kSuccess) {
      facts.ecc = now != 0;
      facts.ecc_pending = pending != 0;
    }
    unsigned long long errors = 0;
    if (ecc_errors != nullptr && ecc_errors(gpu, kUncorrected, kVolatile, &errors) == kSuccess) {
      facts.uncorrected_ecc_errors = errors;
    }
    if (unsigned now = 0, pending = 0; mig != nullptr && mig(gpu, &now, &pending) == kSuccess) facts.mig = now != 0;
    facts.power_w = watts(power, gpu);
    facts.power_limit_w = watts(power_limit, gpu);
    facts.default_power_limit_w = watts(default_power_limit, gpu);
    facts.temperature_c = number(temperature, gpu, kTemperatureGpu);
    if (const auto on = signed_number(persistence, gpu)) facts.persistence = *on != 0;
    facts.compute_mode = signed_number(compute_mode, gpu);
    facts.pcie_generation = number(pcie_generation, gpu);
    facts.max_pcie_generation = number(max_pcie_generation, gpu);
    facts.pcie_width = number(pcie_width, gpu);
    facts.max_pcie_width = number(max_pcie_width, gpu);
    facts.nvlinks = nvlinks_of(gpu);
    return facts;
  }
};

Nvml::Nvml(const std::string& library) : impl_(std::make_unique<Impl>(library)) {}
Nvml::~Nvml() = default;

bool Nvml::ready() const {
  return impl_->ready;
}

GpuSystem Nvml::system() const {
  const Impl& nvml = *impl_;
  GpuSystem system;
  system.library_found = nvml.library != nullptr;
  system.failure = nvml.failure;
  system.version_mismatch = nvml.mismatch;
  if (!nvml.ready) return system;
  std::array<char, 96> version{};
  if (nvml.driver_version != nullptr && nvml.driver_version(version.data(), version.size() - 1) == kSuccess) {
    system.driver = version.data();
  }
  if (int cuda = 0; nvml.cuda_version != nullptr && nvml.cuda_version(&cuda) == kSuccess) system.driver_cuda = cuda;

  unsigned n = 0;
  if (nvml.count(&n) != kSuccess) n = 0;
  std::vector<Handle> handles;
  for (unsigned i = 0; i < n; ++i) {
    Handle gpu = nullptr;
    if (nvml.by_index(i, &gpu) != kSuccess) continue;  // one that may not be seen from here
    GpuFacts facts = nvml.facts_of(gpu);
    facts.nvml_index = static_cast<int>(i);
    facts.utilization_percent = settled_utilization(facts.uuid);
    system.gpus.push_back(std::move(facts));
    handles.push_back(gpu);
  }
  for (const Handle from : handles) {
    std::vector<Peer> row;
    for (const Handle to : handles) row.push_back(nvml.peer_of(from, to));
    system.peers.push_back(std::move(row));
  }
  return system;
}

GpuLoad Nvml::pulse(const std::string& uuid) const {
  GpuLoad load;
  const Handle gpu = impl_->find(uuid);
  if (gpu == nullptr) return load;
  load.clock_mhz = Impl::number(impl_->clock, gpu, kClockSm);
  load.throttle = impl_->throttle_of(gpu);
  return load;
}

GpuLoad Nvml::load(const std::string& uuid) const {
  GpuLoad load = pulse(uuid);
  const Impl& nvml = *impl_;
  const Handle gpu = nvml.find(uuid);
  if (gpu == nullptr) return load;
  load.utilization_percent = settled_utilization(uuid);
  load.other_processes = nvml.others_of(gpu);
  return load;
}

std::optional<int> Nvml::settled_utilization(const std::string& uuid) const {
  const Handle gpu = impl_->find(uuid);
  if (gpu == nullptr) return std::nullopt;
  const std::optional<int> first = impl_->utilization_of(gpu);
  if (first.value_or(0) < kBusyPercent) return first;
  std::this_thread::sleep_for(kSamplingPeriod);
  return impl_->utilization_of(gpu);
}

std::string Nvml::whole_gpu(const std::string& uuid) const {
  const Handle gpu = impl_->find(uuid);
  return gpu == nullptr ? "" : Impl::text(impl_->uuid, gpu);
}

}  // namespace warpmeter::harness::doctor
