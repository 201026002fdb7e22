#include <cuda_bf16.h>

#include "kernels/attention/cuda/flash_sm90/forward_launch.cuh"
#include "kernels/attention/dev/flash_sm90_bench/variants.hpp"

namespace warpmeter::attention::flash_sm90::bench {

void add_d256(std::vector<Variant>& variants) {
#define ADD(d, m, n, ping_pong, stages)                                                                               \
  variants.push_back({{#m "x" #n "_" #ping_pong "_" #stages, d,                                                       \
                       launch_forward<__nv_bfloat16, ForwardConfig<d, m, n, false, ping_pong, stages>>},              \
                      false});                                                                                        \
  variants.push_back({{#m "x" #n "_" #ping_pong "_" #stages, d,                                                       \
                       launch_forward<__nv_bfloat16, ForwardConfig<d, m, n, true, ping_pong, stages>>},               \
                      true});
  // tile of queries and keys, taking turns, stages
  ADD(256, 128, 80, false, 2)
  ADD(256, 128, 80, true, 2)
  ADD(96, 128, 176, true, 2)
  ADD(96, 128, 128, true, 2)
  ADD(80, 128, 176, true, 2)
  ADD(80, 128, 128, true, 2)
#undef ADD
}

}  // namespace warpmeter::attention::flash_sm90::bench
