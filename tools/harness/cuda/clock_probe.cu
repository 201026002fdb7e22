// Reads the SM clock around a piece of work without privileges.
//
// stamp_kernel: one block of one thread for each multiprocessor; the first block on each writes {ticket, globaltimer,
// clock64} into that multiprocessor's slot, in mapped host memory so that no copy is needed. Cycles and nanoseconds
// between two stamps of the same multiprocessor give its clock. Source of the method: NVIDIA nvbench, get_timestamps.
#include <cstring>
#include <limits>

#include <cuda_runtime.h>

#include "kernels/runtime/cuda_check.hpp"
#include "kernels/runtime/device.hpp"
#include "tools/harness/cuda/globaltimer.cuh"
#include "tools/harness/cuda/stream_kernels.hpp"

namespace warpmeter::harness::detail {
namespace {

constexpr unsigned kMostMultiprocessors = 1024;

struct Stamp {
  unsigned long long ticket, ns, cycles;
};
struct Slots {
  Stamp begin[kMostMultiprocessors];
  Stamp end[kMostMultiprocessors];
  unsigned long long resolution_ns;
};

__global__ void stamp_kernel(Stamp* slots, unsigned long long* claims, unsigned long long ticket) {
  const unsigned sm = multiprocessor_id();
  if (sm >= kMostMultiprocessors) return;
  // Two blocks may share a multiprocessor; one of them writes.
  if (atomicExch(&claims[sm], ticket) == ticket) return;
  slots[sm] = {ticket, globaltimer_ns(), static_cast<unsigned long long>(clock64())};
}

/// The smallest step of globaltimer, of a few.
__global__ void resolution_kernel(unsigned long long* resolution_ns) {
  unsigned long long least = ~0ull;
  for (int step = 0; step < 8; ++step) {
    const unsigned long long start = globaltimer_ns();
    unsigned long long now = start;
    while (now == start) now = globaltimer_ns();
    if (now - start < least) least = now - start;
  }
  *resolution_ns = least;
}

class CudaClockProbe final : public ClockProbe {
 public:
  explicit CudaClockProbe(const Context& context) : context_(context) {
    const DeviceProperties device = properties(context.device());
    blocks_ = static_cast<unsigned>(device.multiprocessors);
    max_clock_mhz_ = device.max_clock_mhz;
    claims_ = context.allocator->allocate_for_harness(kClaimBytes);
    try {
      WM_CUDA_CHECK(cudaHostAlloc(reinterpret_cast<void**>(&slots_), sizeof(Slots), cudaHostAllocMapped));
      std::memset(slots_, 0, sizeof(Slots));
      WM_CUDA_CHECK(cudaHostGetDevicePointer(reinterpret_cast<void**>(&device_slots_), slots_, 0));
      fill_bytes(claims_, context.device(), 0, kClaimBytes, context.stream);
      resolution_kernel<<<1, 1, 0, handle(context.stream)>>>(&device_slots_->resolution_ns);
      check_launch();
      begin(context.stream);
      end(context.stream);
      synchronize(context.stream);
    } catch (...) {
      release();
      throw;
    }
  }
  ~CudaClockProbe() override { release(); }

  void begin(StreamView stream) override {
    begin_ticket_ = ++ticket_;
    launch(stream, device_slots_->begin);
  }
  void end(StreamView stream) override {
    end_ticket_ = ++ticket_;
    launch(stream, device_slots_->end);
  }

  [[nodiscard]] Window read() const override {
    Window window;
    double multiprocessors = 0;
    for (unsigned sm = 0; sm < kMostMultiprocessors; ++sm) {
      const Stamp& first = slots_->begin[sm];
      const Stamp& last = slots_->end[sm];
      if (first.ticket != begin_ticket_ || last.ticket != end_ticket_ || last.ns <= first.ns) continue;
      window.cycles += static_cast<double>(last.cycles - first.cycles);
      window.ns += static_cast<double>(last.ns - first.ns);
      multiprocessors += 1;
    }
    if (multiprocessors == 0) return {};
    return {window.cycles / multiprocessors, window.ns / multiprocessors};
  }
  [[nodiscard]] double resolution_ns() const override { return static_cast<double>(slots_->resolution_ns); }
  [[nodiscard]] double max_clock_mhz() const override { return max_clock_mhz_; }

 private:
  static constexpr std::size_t kClaimBytes = kMostMultiprocessors * sizeof(unsigned long long);

  static cudaStream_t handle(StreamView stream) { return static_cast<cudaStream_t>(stream.handle); }
  void launch(StreamView stream, Stamp* slots) {
    stamp_kernel<<<blocks_, 1, 0, handle(stream)>>>(slots, static_cast<unsigned long long*>(claims_), ticket_);
    check_launch();
  }
  void release() noexcept {
    if (slots_ != nullptr) static_cast<void>(cudaFreeHost(slots_));
    context_.allocator->free_for_harness(claims_, kClaimBytes);
  }

  Context context_;
  unsigned blocks_ = 1;
  double max_clock_mhz_ = 0;
  void* claims_ = nullptr;
  Slots* slots_ = nullptr;
  Slots* device_slots_ = nullptr;
  unsigned long long ticket_ = 0;
  unsigned long long begin_ticket_ = 0;
  unsigned long long end_ticket_ = 0;
};

}  // namespace

std::unique_ptr<ClockProbe> make_cuda_clock_probe(const Context& context) {
  return std::make_unique<CudaClockProbe>(context);
}

}  // namespace warpmeter::harness::detail
