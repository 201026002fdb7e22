#pragma once

#include <cstdint>

/// Shared memory of the other blocks of a cluster (sm_90). PTX ISA, "mapa", "ld.shared::cluster", "barrier.cluster".
namespace warpmeter::ptx {

/// This block's place in its cluster; 0 where there are none.
__device__ __forceinline__ std::uint32_t rank_in_cluster() {
#if __CUDA_ARCH__ >= 900
  std::uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
#else
  return 0;
#endif
}

/// Waits for all threads of the cluster; what each wrote before is then visible to all.
__device__ __forceinline__ void sync_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "barrier.cluster.arrive.release;\n"
      "barrier.cluster.wait.acquire;" ::
          : "memory");
#endif
}

/// Waits until all threads of the cluster are here, and orders nothing: so that no block ends while another one reads
/// its shared memory.
__device__ __forceinline__ void leave_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "barrier.cluster.arrive.relaxed;\n"
      "barrier.cluster.wait;" ::
          : "memory");
#endif
}

/// The two halves of leave_cluster(), for what lies between them to hide the waiting: after the second every block of
/// the cluster has begun, so that there is shared memory to write to.
__device__ __forceinline__ void arrive_at_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait;" ::: "memory");
#endif
}

/// Where block `rank` of the cluster has what this one has at `address`, for store_float2_async().
__device__ __forceinline__ std::uint32_t address_of(std::uint32_t address, std::uint32_t rank) {
#if __CUDA_ARCH__ >= 900
  std::uint32_t remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  return remote;
#else
  return address;
#endif
}

/// To another block's shared memory; 8 bytes more have come to that block's mbarrier at `remote_barrier` when it is
/// there.
__device__ __forceinline__ void store_float2_async(std::uint32_t remote, float x, float y,
                                                   std::uint32_t remote_barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(remote),
               "f"(x), "f"(y), "r"(remote_barrier)
               : "memory");
#endif
}

/// The float that block `rank` of the cluster has where this one has `address`.
__device__ __forceinline__ float load_float_of(std::uint32_t address, std::uint32_t rank) {
#if __CUDA_ARCH__ >= 900
  float value;
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %1, %2;\n"
      "ld.shared::cluster.f32 %0, [remote];\n"
      "}\n"
      : "=f"(value)
      : "r"(address), "r"(rank)
      : "memory");
  return value;
#else
  return 0;
#endif
}

}  // namespace warpmeter::ptx
