#pragma once

namespace warpmeter::harness::detail {

/// Nanoseconds of the GPU's own timer, the same on all multiprocessors; steps are up to a microsecond or so.
__device__ inline unsigned long long globaltimer_ns() {
  unsigned long long value;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value)::"memory");
  return value;
}

__device__ inline unsigned multiprocessor_id() {
  unsigned value;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(value));
  return value;
}

}  // namespace warpmeter::harness::detail
