// A kernel that holds its stream until the host releases it.
//
// grid 1 x 1 thread. It spins on a ticket in mapped pinned host memory: hold k waits until the host has written k or
// more, so that a hold that gave up and a late release cannot be taken for those of the next. It gives up by the GPU's
// own clock. Source of the method: NVIDIA nvbench, blocking_kernel.
#include <new>

#include <cuda_runtime.h>

#include "kernels/runtime/cuda_check.hpp"
#include "tools/harness/cuda/globaltimer.cuh"
#include "tools/harness/cuda/stream_kernels.hpp"

namespace warpmeter::harness::detail {
namespace {

struct Gate {
  volatile unsigned released;  // by the host: the last ticket that may pass
  volatile unsigned gave_up;   // by the device: the last ticket that gave up
};

__global__ void hold_kernel(Gate* gate, unsigned ticket, unsigned long long limit_ns) {
  const unsigned long long start = globaltimer_ns();
  while (gate->released < ticket) {
    if (globaltimer_ns() - start > limit_ns) {
      gate->gave_up = ticket;
      __threadfence_system();  // the host reads it once the stream is synchronized
      return;
    }
  }
}

class CudaBlocker final : public Blocker {
 public:
  explicit CudaBlocker(StreamView stream) {
    WM_CUDA_CHECK(cudaHostAlloc(reinterpret_cast<void**>(&gate_), sizeof(Gate), cudaHostAllocMapped));
    gate_->released = 0;
    gate_->gave_up = 0;
    try {
      WM_CUDA_CHECK(cudaHostGetDevicePointer(reinterpret_cast<void**>(&device_gate_), gate_, 0));
      launch(stream, 0, 0);  // passes at once: loads the kernel
      synchronize(stream);
    } catch (...) {
      static_cast<void>(cudaFreeHost(gate_));
      throw;
    }
  }
  ~CudaBlocker() override {
    release();
    static_cast<void>(cudaFreeHost(gate_));  // waits for the device
  }

  void hold(StreamView stream, std::int64_t limit_ns) override {
    launch(stream, ++ticket_, static_cast<unsigned long long>(limit_ns));
  }
  void release() noexcept override { gate_->released = ticket_; }
  [[nodiscard]] bool gave_up() const noexcept override { return ticket_ != 0 && gate_->gave_up == ticket_; }

 private:
  void launch(StreamView stream, unsigned ticket, unsigned long long limit_ns) {
    hold_kernel<<<1, 1, 0, static_cast<cudaStream_t>(stream.handle)>>>(device_gate_, ticket, limit_ns);
    check_launch();
  }

  Gate* gate_ = nullptr;
  Gate* device_gate_ = nullptr;
  unsigned ticket_ = 0;
};

}  // namespace

std::unique_ptr<Blocker> make_cuda_blocker(StreamView stream) {
  return std::make_unique<CudaBlocker>(stream);
}

}  // namespace warpmeter::harness::detail
