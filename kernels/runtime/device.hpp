#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace warpmeter {

enum class DeviceKind : std::uint8_t { cpu, cuda };

/// A device by kind and index. A value: copying it owns nothing.
struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;

  [[nodiscard]] static constexpr Device cpu() noexcept { return {DeviceKind::cpu, 0}; }
  [[nodiscard]] static constexpr Device cuda(int index = 0) noexcept { return {DeviceKind::cuda, index}; }
  [[nodiscard]] constexpr bool is_cpu() const noexcept { return kind == DeviceKind::cpu; }
  [[nodiscard]] constexpr bool is_cuda() const noexcept { return kind == DeviceKind::cuda; }
  friend constexpr bool operator==(const Device&, const Device&) noexcept = default;
};

/// "cpu", "cuda:0".
[[nodiscard]] std::string name(Device device);

/// Resolves `auto`, `cpu`, `cuda` (= cuda:0) or `cuda:N`. auto takes the first CUDA device, else the CPU.
/// Throws std::invalid_argument, with what would be accepted, for any other word or a device that is not there.
[[nodiscard]] Device parse_device(const std::string& text);

/// True when this build has the CUDA side (WARPMETER_CUDA).
[[nodiscard]] bool built_with_cuda() noexcept;

/// Number of usable CUDA devices; 0 without a driver, never an error.
[[nodiscard]] int cuda_device_count() noexcept;

/// Why cuda_device_count() is 0 ("built without CUDA", the driver's own words), empty otherwise.
[[nodiscard]] std::string cuda_unavailable_reason();

/// What a device is. Sizes in bytes; fields that a device kind does not have are 0 or empty.
struct DeviceProperties {
  std::string name;         ///< "NVIDIA H200", "AMD EPYC 9654"
  std::string uuid;         ///< "GPU-..." (CUDA)
  int sm = 0;               ///< compute capability, 90 for Hopper (CUDA)
  int multiprocessors = 0;  ///< SMs (CUDA)
  int cores = 0;            ///< threads that may run at once (CPU: affinity mask, bounded by the CPU quota)
  std::string isa;          ///< widest vector instruction set in use, "avx512", "avx2", "generic" (CPU)
  std::size_t memory_bytes = 0;
  std::size_t last_level_cache_bytes = 0;  ///< L2 of a GPU, L3 of a CPU; what a cold measurement must flush
  std::string driver;                      ///< "580.159.04" (CUDA)
  std::string cuda_runtime;                ///< "13.0" (CUDA)
  int clock_mhz = 0;                       ///< SM clock now (CUDA)
  int max_clock_mhz = 0;
  int memory_clock_mhz = 0;
};

[[nodiscard]] DeviceProperties properties(Device device);

/// Bytes that an allocation could still get now: cudaMemGetInfo's free; MemAvailable bounded by the cgroup's limit.
[[nodiscard]] std::size_t free_memory_bytes(Device device);

/// Blocks the host until everything launched on `device` is done. Throws DeviceError.
void synchronize(Device device);

/// Makes `device` the calling thread's current one (CUDA's notion), and restores the previous one at the end, unless
/// nothing in the process has used that one yet: making it current would create a context on it. A no-op for the CPU.
class DeviceGuard {
 public:
  explicit DeviceGuard(Device device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_ = -1;
};

}  // namespace warpmeter
