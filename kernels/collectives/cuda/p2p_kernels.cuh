#pragma once

#include "kernels/collectives/cuda/p2p_bulk.hpp"
#include "kernels/collectives/cuda/p2p_launch.hpp"
#include "kernels/collectives/cuda/p2p_small.hpp"
#include "kernels/runtime/cuda_check.hpp"

/// The kernels of the p2p backend: the protocols of p2p_small.hpp and p2p_bulk.hpp, a block of the grid each a Cta.
namespace warpmeter::collectives::p2p {

class DeviceCta {
 public:
  [[nodiscard]] static __device__ int thread() { return static_cast<int>(threadIdx.x); }
  [[nodiscard]] static __device__ int threads() { return static_cast<int>(blockDim.x); }
  [[nodiscard]] static __device__ int block() { return static_cast<int>(blockIdx.x); }
  [[nodiscard]] static __device__ int blocks() { return static_cast<int>(gridDim.x); }
  static __device__ void sync() { __syncthreads(); }
  [[nodiscard]] static __device__ bool all(bool mine) { return __syncthreads_and(mine ? 1 : 0) != 0; }
  [[nodiscard]] static __device__ std::uint64_t now_ns() {
    std::uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
  }
  /// One thread of those of its warp that wait.
  [[nodiscard]] static __device__ bool polls_host() {
    return (threadIdx.x & 31U) == static_cast<unsigned>(__ffs(static_cast<int>(__activemask())) - 1);
  }
  static __device__ void pause() {}
};

template <class T, int kWorld, bool kPlain>
__global__ void __launch_bounds__(kMaxThreads) small_kernel(const __grid_constant__ P2pCall call) {
  DeviceCta cta;
  run_small<T, kWorld, kPlain>(call, cta);
}

template <class T, int kWorld>
__global__ void __launch_bounds__(kMaxThreads) bulk_kernel(const __grid_constant__ P2pCall call) {
  __shared__ Peers peers;
  DeviceCta cta;
  run_bulk<T, kWorld>(call, cta, peers);
}

using Kernel = void (*)(P2pCall);

/// Bytes that are not combined are no all_reduce.
template <class T, int kWorld>
Kernel small_kernel_of(bool plain) {
  if constexpr (T::kBytes > 1) {
    if (plain) return small_kernel<T, kWorld, true>;
  }
  return small_kernel<T, kWorld, false>;
}

template <class T>
void launch_kernels(const P2pCall& call, const Launch& how) {
  const bool two = call.world_size == 2;
  const bool plain = is_plain(call, how.threads);
  const Kernel kernel = how.small ? (two ? small_kernel_of<T, 2>(plain) : small_kernel_of<T, 0>(plain))
                                  : (two ? bulk_kernel<T, 2> : bulk_kernel<T, 0>);
  kernel<<<static_cast<unsigned>(how.blocks), static_cast<unsigned>(how.threads), 0,
           static_cast<cudaStream_t>(how.stream.handle)>>>(call);
  check_launch();
}

template <class T>
void load_each() {
  cudaFuncAttributes attributes;
  for (const bool plain : {false, true}) {
    WM_CUDA_CHECK(cudaFuncGetAttributes(&attributes, small_kernel_of<T, 2>(plain)));
    WM_CUDA_CHECK(cudaFuncGetAttributes(&attributes, small_kernel_of<T, 0>(plain)));
  }
  WM_CUDA_CHECK(cudaFuncGetAttributes(&attributes, bulk_kernel<T, 2>));
  WM_CUDA_CHECK(cudaFuncGetAttributes(&attributes, bulk_kernel<T, 0>));
}

}  // namespace warpmeter::collectives::p2p
