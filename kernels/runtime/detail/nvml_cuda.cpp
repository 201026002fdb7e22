#include "kernels/runtime/detail/nvml_cuda.hpp"

#include <dlfcn.h>

namespace warpmeter::detail {
namespace {

// The few declarations of nvml.h that are used: the header is not part of every toolkit, and the library must not be
// needed to start the program.
using NvmlDevice = void*;
using NvmlStatus = int;
constexpr NvmlStatus kNvmlSuccess = 0;
constexpr int kNvmlClockSm = 1;
constexpr int kNvmlClockMemory = 2;

struct Nvml {
  NvmlStatus (*init)() = nullptr;
  NvmlStatus (*driver_version)(char*, unsigned) = nullptr;
  NvmlStatus (*by_uuid)(const char*, NvmlDevice*) = nullptr;
  NvmlStatus (*by_pci)(const char*, NvmlDevice*) = nullptr;
  NvmlStatus (*clock)(NvmlDevice, int, unsigned*) = nullptr;
  NvmlStatus (*max_clock)(NvmlDevice, int, unsigned*) = nullptr;
  bool ready = false;

  Nvml() {
    void* const library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);  // stays loaded
    if (library == nullptr) return;
    const bool found =
        load(library, "nvmlInit_v2", init) && load(library, "nvmlSystemGetDriverVersion", driver_version) &&
        load(library, "nvmlDeviceGetHandleByUUID", by_uuid) &&
        load(library, "nvmlDeviceGetHandleByPciBusId_v2", by_pci) && load(library, "nvmlDeviceGetClockInfo", clock) &&
        load(library, "nvmlDeviceGetMaxClockInfo", max_clock);
    ready = found && init() == kNvmlSuccess;
  }

 private:
  template <class Function>
  static bool load(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    return function != nullptr;
  }
};

const Nvml& nvml() {
  static const Nvml library;
  return library;
}

int megahertz(NvmlStatus (*query)(NvmlDevice, int, unsigned*), NvmlDevice device, int kind) {
  unsigned value = 0;
  return query(device, kind, &value) == kNvmlSuccess ? static_cast<int>(value) : 0;
}

}  // namespace

NvmlFacts nvml_facts(const std::string& uuid, const std::string& pci_bus_id) {
  NvmlFacts facts;
  const Nvml& library = nvml();
  if (!library.ready) return facts;
  char version[96] = "";
  if (library.driver_version(version, sizeof(version)) == kNvmlSuccess) facts.driver = version;

  NvmlDevice device = nullptr;
  if (library.by_uuid(("GPU-" + uuid).c_str(), &device) != kNvmlSuccess) {
    facts.is_mig = library.by_uuid(("MIG-" + uuid).c_str(), &device) == kNvmlSuccess;
    // Clocks belong to the whole GPU.
    if (library.by_pci(pci_bus_id.c_str(), &device) != kNvmlSuccess) return facts;
  }
  facts.clock_mhz = megahertz(library.clock, device, kNvmlClockSm);
  facts.max_clock_mhz = megahertz(library.max_clock, device, kNvmlClockSm);
  facts.memory_clock_mhz = megahertz(library.clock, device, kNvmlClockMemory);
  return facts;
}

}  // namespace warpmeter::detail
