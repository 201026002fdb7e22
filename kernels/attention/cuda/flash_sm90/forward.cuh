#pragma once

#include <cstdint>

#include "kernels/attention/cuda/flash_sm90/consumer.cuh"
#include "kernels/attention/cuda/flash_sm90/forward_config.cuh"
#include "kernels/attention/cuda/flash_sm90/params.hpp"
#include "kernels/attention/cuda/flash_sm90/producer.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/shared_address.cuh"
#include "kernels/ptx/warpgroup.cuh"

/// FlashAttention forward for sm_90a. A block stays on its multiprocessor and draws work items (a tile of queries of
/// one head) until none is left. Its first warpgroup draws them and fills shared memory through the copy engine; the
/// others multiply, 64 query rows each. Source: Shah et al., "FlashAttention-3", 2024. A consumer's step, whose key
/// block may be the next one of its item or the first (the last keys) of its next item:
///
///     S' = Q K'^T  |  O += P V     both under way at once
///     softmax of S'                beside O's product
///     O takes the new maximum; or, where an item ends, O / sum and LSE are stored
///     P = S'
namespace warpmeter::attention::flash_sm90 {

template <class T, class Config>
__device__ __forceinline__ void run_block(const typename Config::Params& params) {
  extern __shared__ unsigned char shared_memory[];
  const std::uint32_t shared = (ptx::shared_address(shared_memory) + 1023) / 1024 * 1024;
  if (threadIdx.x == 0) {
    for (int i = 0; i < Config::kQueryStages * Config::kConsumers; ++i) {
      ptx::mbarrier_init(shared + Config::kQueryFull + 8 * i, 1);
      ptx::mbarrier_init(shared + Config::kQueryEmpty + 8 * i, 4);
    }
    for (int i = 0; i < Config::kStages; ++i) {
      ptx::mbarrier_init(shared + Config::kKeyFull + 8 * i, 1);
      ptx::mbarrier_init(shared + Config::kKeyEmpty + 8 * i, 4 * Config::kConsumers);
      ptx::mbarrier_init(shared + Config::kValueFull + 8 * i, 1);
      ptx::mbarrier_init(shared + Config::kValueEmpty + 8 * i, 4 * Config::kConsumers);
    }
    for (int i = 0; i < Config::kWorkSlots; ++i) {
      ptx::mbarrier_init(shared + Config::kWorkFull + 8 * i, 1);
      ptx::mbarrier_init(shared + Config::kWorkEmpty + 8 * i, 4 * Config::kConsumers + 2);
    }
    ptx::mbarrier_init(shared + Config::kWorkDemand, 1);
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  if (warpgroup == 0) {
    ptx::set_max_registers_less<Config::kProducerRegisters>();
    // One thread a warp, so that none waits for another.
    if (threadIdx.x == 0) load_queries_and_keys<Config>(params, shared);
    if (threadIdx.x == 32) load_values<Config>(params, shared);
    if (threadIdx.x == 64) schedule<Config>(params, shared);
  } else {
    ptx::set_max_registers_more<Config::kConsumerRegisters>();
    Consumer<T, Config>(params, shared, __shfl_sync(0xffffffffu, warpgroup - 1, 0)).run();
  }
}

template <class T, class Config>
__global__ void __launch_bounds__(Config::kThreads, 1) forward_kernel(const __grid_constant__ ForwardParams params) {
  run_block<T, Config>(params);
}
template <class T, class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    paged_forward_kernel(const __grid_constant__ PagedForwardParams params) {
  run_block<T, Config>(params);
}

}  // namespace warpmeter::attention::flash_sm90
