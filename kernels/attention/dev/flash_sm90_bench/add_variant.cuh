#pragma once

#include <cuda_bf16.h>

#include "kernels/attention/cuda/flash_sm90/forward_launch.cuh"
#include "kernels/attention/dev/flash_sm90_bench/variants.hpp"

namespace warpmeter::attention::flash_sm90::bench {

/// A tile of queries and keys, taking turns, stages of keys and of queries; with and without a mask.
template <int kHeadDim, int kBlockM, int kBlockN, bool kPingPong, int kStages, int kQueryStages>
void add_variant(const char* name, std::vector<Variant>& variants) {
  variants.push_back(
      {{name, kHeadDim,
        launch_forward<__nv_bfloat16,
                       ForwardConfig<kHeadDim, kBlockM, kBlockN, false, kPingPong, kStages, kQueryStages>>},
       false});
  variants.push_back(
      {{name, kHeadDim,
        launch_forward<__nv_bfloat16,
                       ForwardConfig<kHeadDim, kBlockM, kBlockN, true, kPingPong, kStages, kQueryStages>>},
       true});
}

}  // namespace warpmeter::attention::flash_sm90::bench
