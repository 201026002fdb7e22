#include <cuda_bf16.h>

#include "kernels/attention/cuda/flash_sm90/forward_launch.cuh"
#include "kernels/attention/dev/flash_sm90_bench/variants.hpp"

namespace warpmeter::attention::flash_sm90::bench {

void add_d64(std::vector<Variant>& variants) {
#define ADD_ONE(d, m, n, ping_pong, stages, query_stages, half, causal)                                   \
  variants.push_back(                                                                                     \
      {{#m "x" #n "_" #ping_pong "_" #stages #query_stages #half, d,                                      \
        launch_forward<__nv_bfloat16,                                                                     \
                       ForwardConfig<d, m, n, causal, ping_pong, stages, query_stages, causal && half>>}, \
       causal});
#define ADD(...)              \
  ADD_ONE(__VA_ARGS__, false) \
  ADD_ONE(__VA_ARGS__, true)
  // tile of queries and keys, taking turns, stages of keys, of queries, half blocks where causal
  ADD(64, 192, 128, true, 2, 1, false)
  ADD(64, 192, 128, true, 4, 1, true)
  ADD(64, 192, 128, true, 4, 1, false)
#undef ADD
#undef ADD_ONE
}

}  // namespace warpmeter::attention::flash_sm90::bench
