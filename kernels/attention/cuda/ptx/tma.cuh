#pragma once

#include <cstdint>

#include <cuda.h>

namespace warpmeter::ptx {

/// What the L2 cache should do with the lines of a copy; the values are those of createpolicy.fractional 1.0.
enum class L2Policy : std::uint64_t {
  evict_normal = 0x1000000000000000,
  evict_first = 0x12F0000000000000,
  evict_last = 0x14F0000000000000,
};

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

}  // namespace warpmeter::ptx
