// The counters by which the blocks of a row's parts find out who is done last.
#include <atomic>

#include "kernels/attention/cuda/decode/params.hpp"
#include "kernels/runtime/check.hpp"
#include "kernels/runtime/cuda_check.hpp"

namespace warpmeter::attention::cuda_decode {
namespace {

constexpr unsigned kCounters = 16 * kMostCounters;
__device__ unsigned counters[kCounters];  // zeroed by the loader; every launch leaves its own zeroed

}  // namespace

unsigned* next_counters(int count) {
  static std::atomic<unsigned> turn{0};
  WM_CHECK(count > 0 && count <= kMostCounters, "more counters than a launch can have");
  void* first = nullptr;  // the current device's
  WM_CUDA_CHECK(cudaGetSymbolAddress(&first, counters));
  // A launch's are one piece: a start from which they do not fit before the end goes back to the beginning.
  const auto wanted = static_cast<unsigned>(count);
  unsigned start = turn.load(std::memory_order_relaxed);
  unsigned next = 0;
  do {
    next = start + wanted <= kCounters ? start + wanted : wanted;
  } while (!turn.compare_exchange_weak(start, next, std::memory_order_relaxed));
  return static_cast<unsigned*>(first) + (next - wanted);
}

}  // namespace warpmeter::attention::cuda_decode
