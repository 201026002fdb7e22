#include <cstdio>
#include <string>

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include "kernels/runtime/check.hpp"
#include "kernels/runtime/cuda_check.hpp"
#include "kernels/runtime/detail/backend.hpp"
#include "kernels/runtime/detail/nvml_cuda.hpp"

namespace warpmeter::detail {
namespace {

/// For destructors: one line on stderr, unless the context is lost (said already) or the process is ending.
void report(cudaError_t error, const char* call) noexcept {
  if (error == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  if (error == cudaErrorCudartUnloading || is_sticky(error)) return;
  std::fprintf(stderr, "warpmeter: %s failed: %s (%s)\n", call, cudaGetErrorName(error), cudaGetErrorString(error));
}

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

/// True when something in this process has used the device: its primary context exists.
bool has_context(int index) noexcept {
  using State = int (*)(int device, unsigned* flags, int* active);
  static const State state = [] {
    void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    return driver == nullptr ? nullptr : reinterpret_cast<State>(dlsym(driver, "cuDevicePrimaryCtxGetState"));
  }();
  unsigned flags = 0;
  int active = 1;
  return state == nullptr || state(index, &flags, &active) != 0 || active != 0;
}

struct Devices {
  int count = 0;
  std::string reason;

  Devices() {
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaSuccess && count > 0) return;
    static_cast<void>(cudaGetLastError());
    count = 0;
    reason = error == cudaSuccess ? "no CUDA device" : cudaGetErrorString(error);
    int driver = 0;
    int runtime = 0;
    if (error == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver) == cudaSuccess &&
        cudaRuntimeGetVersion(&runtime) == cudaSuccess) {
      reason += driver == 0 ? ": no NVIDIA driver is installed"
                            : ": the driver goes up to CUDA " + version_text(driver) + ", this program needs " +
                                  version_text(runtime);
    }
  }
};

const Devices& devices() {
  static const Devices found;
  return found;
}

cudaStream_t as_stream(void* stream) {
  return static_cast<cudaStream_t>(stream);
}
cudaEvent_t as_event(void* event) {
  return static_cast<cudaEvent_t>(event);
}

bool is_pageable(const void* host) {
  cudaPointerAttributes attributes{};
  WM_CUDA_CHECK(cudaPointerGetAttributes(&attributes, host));
  return attributes.type == cudaMemoryTypeUnregistered;
}

/// Null streams, new events and allocations belong to the current device.
class Current {
 public:
  explicit Current(int index) {
    WM_CUDA_CHECK(cudaGetDevice(&previous_));
    if (previous_ == index) {
      previous_ = -1;
    } else {
      WM_CUDA_CHECK(cudaSetDevice(index));
    }
  }
  ~Current() { restore(previous_); }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

  /// A device that nothing has used yet is left alone: making it current would create a context on it.
  static void restore(int previous) noexcept {
    if (previous >= 0 && has_context(previous)) report(cudaSetDevice(previous), "cudaSetDevice");
  }
  [[nodiscard]] int release() noexcept {
    const int previous = previous_;
    previous_ = -1;
    return previous;
  }

 private:
  int previous_ = -1;
};

class CudaBackend final : public Backend {
 public:
  [[nodiscard]] int device_count() const noexcept override {
    try {
      return devices().count;
    } catch (...) {  // no memory for the reason's text
      return 0;
    }
  }
  [[nodiscard]] std::string unavailable_reason() const override { return devices().reason; }

  [[nodiscard]] DeviceProperties properties(int index) const override {
    cudaDeviceProp device{};
    WM_CUDA_CHECK(cudaGetDeviceProperties(&device, index));
    DeviceProperties p;
    p.name = device.name;
    p.sm = 10 * device.major + device.minor;
    p.multiprocessors = device.multiProcessorCount;
    p.memory_bytes = device.totalGlobalMem;
    p.last_level_cache_bytes = static_cast<std::size_t>(device.l2CacheSize);
    int runtime = 0;
    WM_CUDA_CHECK(cudaRuntimeGetVersion(&runtime));
    p.cuda_runtime = version_text(runtime);

    std::string uuid;
    for (int i = 0; i < 16; ++i) {
      char digits[4];
      std::snprintf(digits, sizeof(digits), "%02x", static_cast<unsigned char>(device.uuid.bytes[i]));
      if (i == 4 || i == 6 || i == 8 || i == 10) uuid += '-';
      uuid += digits;
    }
    char pci_bus_id[32] = "";
    WM_CUDA_CHECK(cudaDeviceGetPCIBusId(pci_bus_id, sizeof(pci_bus_id), index));
    const NvmlFacts facts = nvml_facts(uuid, pci_bus_id);
    p.uuid = (facts.is_mig ? "MIG-" : "GPU-") + uuid;
    p.driver = facts.driver;
    p.clock_mhz = facts.clock_mhz;
    p.max_clock_mhz = facts.max_clock_mhz;
    p.memory_clock_mhz = facts.memory_clock_mhz;
    return p;
  }

  [[nodiscard]] std::size_t total_memory(int index) const override { return memory(index).total; }
  [[nodiscard]] std::size_t free_memory(int index) const override { return memory(index).free; }

  int make_current(int index) const override { return Current(index).release(); }
  void restore_current(int previous) const noexcept override { Current::restore(previous); }

  void synchronize(int index) const override {
    const Current current(index);
    WM_CUDA_CHECK(cudaDeviceSynchronize());
  }

  [[nodiscard]] void* allocate(int index, std::size_t bytes) override {
    const Current current(index);
    void* pointer = nullptr;
    const cudaError_t error = cudaMalloc(&pointer, bytes);
    if (error == cudaErrorMemoryAllocation) {
      static_cast<void>(cudaGetLastError());
      return nullptr;
    }
    cuda_check(error, "cudaMalloc", __FILE__, __LINE__);
    return pointer;
  }

  void free(int /*index*/, void* pointer, std::size_t /*bytes*/) noexcept override {
    report(cudaFree(pointer), "cudaFree");
  }

  void copy(void* destination, Device destination_device, const void* source, Device source_device, std::size_t bytes,
            int index, void* stream) const override {
    const Current current(index);
    if (destination_device.is_cuda() && source_device.is_cuda() && destination_device != source_device) {
      WM_CUDA_CHECK(cudaMemcpyPeerAsync(destination, destination_device.index, source, source_device.index, bytes,
                                        as_stream(stream)));
      return;
    }
    WM_CUDA_CHECK(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDefault, as_stream(stream)));
    const void* const host = destination_device.is_cpu() ? destination : source_device.is_cpu() ? source : nullptr;
    if (host != nullptr && is_pageable(host)) WM_CUDA_CHECK(cudaStreamSynchronize(as_stream(stream)));
  }

  void fill(void* destination, unsigned char value, std::size_t bytes, int index, void* stream) const override {
    const Current current(index);
    WM_CUDA_CHECK(cudaMemsetAsync(destination, value, bytes, as_stream(stream)));
  }

  [[nodiscard]] void* create_stream(int index) const override {
    const Current current(index);
    cudaStream_t stream = nullptr;
    WM_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
  }
  void destroy_stream(int /*index*/, void* stream) const noexcept override {
    report(cudaStreamDestroy(as_stream(stream)), "cudaStreamDestroy");
  }
  void synchronize_stream(int index, void* stream) const override {
    const Current current(index);
    WM_CUDA_CHECK(cudaStreamSynchronize(as_stream(stream)));
  }

  [[nodiscard]] void* create_event(int index, bool timing) const override {
    const Current current(index);
    cudaEvent_t event = nullptr;
    WM_CUDA_CHECK(cudaEventCreateWithFlags(&event, timing ? cudaEventDefault : cudaEventDisableTiming));
    return event;
  }
  void destroy_event(int /*index*/, void* event) const noexcept override {
    report(cudaEventDestroy(as_event(event)), "cudaEventDestroy");
  }
  void record_event(int index, void* event, void* stream) const override {
    const Current current(index);
    WM_CUDA_CHECK(cudaEventRecord(as_event(event), as_stream(stream)));
  }
  [[nodiscard]] bool query_event(int /*index*/, void* event) const override {
    const cudaError_t error = cudaEventQuery(as_event(event));
    if (error == cudaErrorNotReady) {
      // Not a failure, but some versions leave it as the last error. Another call's stays for its own check.
      if (cudaPeekAtLastError() == cudaErrorNotReady) static_cast<void>(cudaGetLastError());
      return false;
    }
    cuda_check(error, "cudaEventQuery", __FILE__, __LINE__);
    return true;
  }
  void synchronize_event(int /*index*/, void* event) const override {
    WM_CUDA_CHECK(cudaEventSynchronize(as_event(event)));
  }
  void wait_event(int index, void* stream, void* event) const override {
    const Current current(index);
    WM_CUDA_CHECK(cudaStreamWaitEvent(as_stream(stream), as_event(event), 0));
  }
  [[nodiscard]] double elapsed_ms(int /*index*/, void* begin, void* end) const override {
    float milliseconds = 0;
    WM_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, as_event(begin), as_event(end)));
    return milliseconds;
  }

 private:
  struct Memory {
    std::size_t free = 0;
    std::size_t total = 0;
  };
  [[nodiscard]] static Memory memory(int index) {
    const Current current(index);
    Memory m;
    WM_CUDA_CHECK(cudaMemGetInfo(&m.free, &m.total));
    return m;
  }
};

}  // namespace

Backend& backend_cuda() noexcept {
  static auto* const backend = new CudaBackend;  // outlives every allocator, stream and event
  return *backend;
}

}  // namespace warpmeter::detail
