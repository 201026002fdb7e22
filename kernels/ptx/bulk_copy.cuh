#pragma once

#include <cstdint>

#include "kernels/ptx/l2_policy.cuh"

namespace warpmeter::ptx {

/// Copies `bytes` (a multiple of 16, both ends aligned to 16) from global to shared memory through the copy engine
/// (sm_90), which counts them on `barrier`. One thread issues it. PTX ISA, "cp.async.bulk".
__device__ __forceinline__ void bulk_load(std::uint32_t destination, const void* source, std::uint32_t bytes,
                                          std::uint32_t barrier, L2Policy policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(destination),
      "l"(source), "r"(bytes), "r"(barrier), "l"(static_cast<std::uint64_t>(policy))
      : "memory");
}

}  // namespace warpmeter::ptx
