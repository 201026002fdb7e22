#include <atomic>

#include "kernels/attention/cuda/flash_sm80/check_cuda.hpp"
#include "kernels/attention/cuda/flash_sm90/kernels.hpp"

namespace warpmeter::attention::flash_sm90 {

namespace {

constexpr unsigned kCounters = 1024;
__device__ WorkCounter work_counters[kCounters];  // zeroed by the loader; every launch leaves its own zeroed

}  // namespace

WorkCounter* next_work_counter() {
  static std::atomic<unsigned> turn{0};
  void* first = nullptr;  // the current device's
  flash_sm80::check_cuda(cudaGetSymbolAddress(&first, work_counters), "cudaGetSymbolAddress");
  return static_cast<WorkCounter*>(first) + turn.fetch_add(1, std::memory_order_relaxed) % kCounters;
}

}  // namespace warpmeter::attention::flash_sm90
