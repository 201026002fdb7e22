#pragma once

#include <cstdint>

#include <cuda.h>

#include "kernels/ptx/tma.cuh"

/// Blocks of a cluster (sm_90). PTX ISA, "barrier.cluster", "mapa", "cp.async.bulk.tensor".
namespace warpmeter::ptx {

__device__ __forceinline__ std::uint32_t cluster_rank() {
  std::uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

/// Waits for all threads of the cluster; what each wrote before is then visible to all.
__device__ __forceinline__ void cluster_sync() {
  asm volatile(
      "barrier.cluster.arrive.release;\n"
      "barrier.cluster.wait.acquire;" ::
          : "memory");
}

/// Arrives at the barrier that block `rank` of the cluster has at the same place as this one has `barrier`.
__device__ __forceinline__ void mbarrier_arrive_at(std::uint32_t barrier, std::uint32_t rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote];\n"
      "}\n" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

/// tma_load_4d to the same place in every block whose bit is set in `blocks`; each counts the bytes on its own barrier.
__device__ __forceinline__ void tma_load_4d_multicast(std::uint32_t destination, const CUtensorMap* map,
                                                      std::uint32_t barrier, std::uint16_t blocks, int c0, int c1,
                                                      int c2, int c3, L2Policy policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6}], [%2], %7, %8;" ::"r"(destination),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "h"(blocks), "l"(static_cast<std::uint64_t>(policy))
      : "memory");
}

}  // namespace warpmeter::ptx
