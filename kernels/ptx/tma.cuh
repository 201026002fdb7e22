#pragma once

#include <cstdint>

#include <cuda.h>

#include "kernels/ptx/l2_policy.cuh"

namespace warpmeter::ptx {

__device__ __forceinline__ void prefetch_tensor_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/// Copies the box at (c0, c1, c2, c3), innermost first, to shared memory and counts its bytes on `barrier`. What lies
/// outside of the tensor arrives as zeros and counts too. One thread issues it.
__device__ __forceinline__ void tma_load_4d(std::uint32_t destination, const CUtensorMap* map, std::uint32_t barrier,
                                            int c0, int c1, int c2, int c3, L2Policy policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(destination),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "l"(static_cast<std::uint64_t>(policy))
      : "memory");
}

/// Brings the same box into the L2 cache, for a load that follows.
__device__ __forceinline__ void tma_prefetch_4d(const CUtensorMap* map, int c0, int c1, int c2, int c3) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(map), "r"(c0), "r"(c1),
               "r"(c2), "r"(c3)
               : "memory");
}

/// Copies shared memory, laid out as a load would lay it out, to the box at (c0, c1, c2, c3); what lies outside of the
/// tensor is not written. What other threads wrote there must be behind an async_proxy_fence of theirs and a barrier.
__device__ __forceinline__ void tma_store_4d(const CUtensorMap* map, std::uint32_t source, int c0, int c1, int c2,
                                             int c3) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
               "r"(source), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
               : "memory");
}

/// Ends this thread's group of stores.
__device__ __forceinline__ void bulk_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/// Until this thread's groups have read their shared memory.
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

/// Puts this thread's writes to shared memory before what the copy engine reads afterwards.
__device__ __forceinline__ void async_proxy_fence() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace warpmeter::ptx
