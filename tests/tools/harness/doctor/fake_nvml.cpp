// A management library of its own: two H200 unless FAKE_NVML says otherwise. Its text is pairs "key=value" with
// semicolons between; "1.utilization=30" is about GPU 1, "utilization=30" about all; "throttle=none" makes that query
// fail as one that the GPU does not support. Read anew at each call, so that a test can change it.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include <unistd.h>

namespace {

constexpr int kSuccess = 0, kInvalidArgument = 2, kNotSupported = 3, kNotFound = 6;

std::string setting(const std::string& key, const std::string& fallback) {
  const char* const all = std::getenv("FAKE_NVML");
  std::string text = all == nullptr ? "" : all;
  text = ";" + text + ";";
  const auto at = text.find(";" + key + "=");
  if (at == std::string::npos) return fallback;
  const auto begin = at + key.size() + 2;
  return text.substr(begin, text.find(';', begin) - begin);
}

int index_of(void* gpu) {
  return static_cast<int>(reinterpret_cast<std::size_t>(gpu)) - 1;
}
void* handle(int index) {
  return reinterpret_cast<void*>(static_cast<std::size_t>(index) + 1);
}
std::string of_gpu(void* gpu, const std::string& key, const std::string& fallback) {
  return setting(std::to_string(index_of(gpu)) + "." + key, setting(key, fallback));
}
template <class T>
int number(void* gpu, const char* key, const char* fallback, T* value) {
  const std::string text = of_gpu(gpu, key, fallback);
  if (text == "none") return kNotSupported;
  *value = static_cast<T>(std::strtoull(text.c_str(), nullptr, 0));
  return kSuccess;
}
int text(const std::string& value, char* out, unsigned size) {
  std::snprintf(out, size, "%s", value.c_str());
  return kSuccess;
}
int count() {
  return std::atoi(setting("count", "2").c_str());
}

struct Utilization {
  unsigned gpu, memory;
};
struct Memory {
  unsigned long long total, free, used;
};
struct Process {
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance, compute_instance;
};
struct PciInfo {
  char legacy_bus_id[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};

}  // namespace

extern "C" {

int nvmlInit_v2() {
  return std::atoi(setting("init", "0").c_str());
}
const char* nvmlErrorString(int status) {
  return status == 18 ? "Driver/library version mismatch" : "Driver Not Loaded";
}
int nvmlSystemGetDriverVersion(char* out, unsigned size) {
  return text(setting("driver", "580.159.04"), out, size);
}
int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = std::atoi(setting("cuda", "13000").c_str());
  return kSuccess;
}
int nvmlDeviceGetCount_v2(unsigned* n) {
  *n = static_cast<unsigned>(count());
  return kSuccess;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** gpu) {
  if (static_cast<int>(index) >= count()) return kInvalidArgument;
  if (setting(std::to_string(index) + ".hidden", "0") == "1") return kNotFound;
  *gpu = handle(static_cast<int>(index));
  return kSuccess;
}
int nvmlDeviceGetHandleByUUID(const char* uuid, void** gpu) {
  for (int index = 0; index < count(); ++index) {
    if (std::string("GPU-") + std::to_string(index) == uuid) {
      *gpu = handle(index);
      return kSuccess;
    }
    if (std::string("MIG-") + std::to_string(index) == uuid) {
      *gpu = handle(index + 100);
      return kSuccess;
    }
  }
  return kNotFound;
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void* slice, void** gpu) {
  if (index_of(slice) < 100) return kInvalidArgument;
  *gpu = handle(index_of(slice) - 100);
  return kSuccess;
}
int nvmlDeviceGetName(void* gpu, char* out, unsigned size) {
  return text(of_gpu(gpu, "name", "NVIDIA H200"), out, size);
}
int nvmlDeviceGetUUID(void* gpu, char* out, unsigned size) {
  return text("GPU-" + std::to_string(index_of(gpu)), out, size);
}
int nvmlDeviceGetPciInfo_v3(void* gpu, PciInfo* info) {
  std::memset(info, 0, sizeof(*info));
  std::snprintf(info->bus_id, sizeof(info->bus_id), "00000000:%02X:00.0", 0x1A + index_of(gpu));
  return kSuccess;
}
int nvmlDeviceGetCudaComputeCapability(void* gpu, int* major, int* minor) {
  int sm = 0;
  const int status = number(gpu, "sm", "90", &sm);
  *major = sm / 10;
  *minor = sm % 10;
  return status;
}
int nvmlDeviceGetMemoryInfo(void* gpu, Memory* memory) {
  unsigned long long used = 0;
  number(gpu, "used_mib", "0", &used);
  memory->total = 143771ULL << 20;
  memory->used = used << 20;
  memory->free = memory->total - memory->used;
  return kSuccess;
}
int nvmlDeviceGetClockInfo(void* gpu, int kind, unsigned* mhz) {
  return kind == 1 ? number(gpu, "clock", "345", mhz) : number(gpu, "memory_clock", "3201", mhz);
}
int nvmlDeviceGetMaxClockInfo(void* gpu, int kind, unsigned* mhz) {
  return kind == 1 ? number(gpu, "max_clock", "1980", mhz) : number(gpu, "max_memory_clock", "3201", mhz);
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void* gpu, unsigned long long* reasons) {
  return number(gpu, "throttle", "1", reasons);
}
int nvmlDeviceGetUtilizationRates(void* gpu, Utilization* rates) {
  rates->memory = 0;
  return number(gpu, "utilization", "0", &rates->gpu);
}
int nvmlDeviceGetComputeRunningProcesses_v3(void* gpu, unsigned* n, Process* processes) {
  // This process is always there; "pids=3" puts three others beside it, the last of unknown size.
  unsigned others = 0;
  number(gpu, "pids", "0", &others);
  if (*n < others + 1) return 7;
  processes[0] = {static_cast<unsigned>(getpid()), 512ULL << 20, ~0U, ~0U};
  for (unsigned i = 1; i <= others; ++i) {
    processes[i] = {4000 + i, i == others ? ~0ULL : (100ULL * i) << 20, ~0U, ~0U};
  }
  *n = others + 1;
  return kSuccess;
}
int nvmlDeviceGetEccMode(void* gpu, int* now, int* pending) {
  *pending = 1;
  const int status = number(gpu, "ecc", "1", now);
  number(gpu, "ecc_pending", "1", pending);
  return status;
}
int nvmlDeviceGetTotalEccErrors(void* gpu, int kind, int counter, unsigned long long* errors) {
  if (kind != 1 || counter != 0) return kInvalidArgument;
  return number(gpu, "ecc_errors", "0", errors);
}
int nvmlDeviceGetMigMode(void* gpu, unsigned* now, unsigned* pending) {
  *pending = 0;
  return number(gpu, "mig", "0", now);
}
int nvmlDeviceGetPowerUsage(void* gpu, unsigned* milliwatts) {
  return number(gpu, "power", "75500", milliwatts);
}
int nvmlDeviceGetEnforcedPowerLimit(void* gpu, unsigned* milliwatts) {
  return number(gpu, "power_limit", "700000", milliwatts);
}
int nvmlDeviceGetPowerManagementDefaultLimit(void* gpu, unsigned* milliwatts) {
  return number(gpu, "default_power_limit", "700000", milliwatts);
}
int nvmlDeviceGetTemperature(void* gpu, int sensor, unsigned* degrees) {
  return sensor == 0 ? number(gpu, "temperature", "31", degrees) : kInvalidArgument;
}
int nvmlDeviceGetPersistenceMode(void* gpu, int* on) {
  return number(gpu, "persistence", "1", on);
}
int nvmlDeviceGetComputeMode(void* gpu, int* mode) {
  return number(gpu, "compute_mode", "0", mode);
}
int nvmlDeviceGetCurrPcieLinkGeneration(void* gpu, unsigned* value) {
  return number(gpu, "pcie", "1", value);
}
int nvmlDeviceGetMaxPcieLinkGeneration(void* gpu, unsigned* value) {
  return number(gpu, "max_pcie", "5", value);
}
int nvmlDeviceGetCurrPcieLinkWidth(void* gpu, unsigned* value) {
  return number(gpu, "width", "16", value);
}
int nvmlDeviceGetMaxPcieLinkWidth(void* gpu, unsigned* value) {
  return number(gpu, "max_width", "16", value);
}
int nvmlDeviceGetNvLinkState(void* gpu, unsigned link, int* on) {
  int links = 0;
  if (number(gpu, "nvlinks", "18", &links) != kSuccess || link >= 18) return kNotSupported;
  *on = static_cast<int>(link) < links ? 1 : 0;
  return kSuccess;
}
int nvmlDeviceGetP2PStatus(void* from, void* to, int index, int* status) {
  // peers: nvlink, pcie, none
  const std::string peers = setting("peers", "nvlink");
  if (from == to || peers == "unknown") return kInvalidArgument;
  *status = peers == "nvlink" || (peers == "pcie" && index == 0) ? 0 : 5;
  return kSuccess;
}

}  // extern "C"
