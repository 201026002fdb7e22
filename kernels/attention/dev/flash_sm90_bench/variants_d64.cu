#include <cuda_bf16.h>

#include "kernels/attention/cuda/flash_sm90/forward_launch.cuh"
#include "kernels/attention/dev/flash_sm90_bench/variants.hpp"

namespace warpmeter::attention::flash_sm90::bench {

void add_d64(std::vector<Variant>& variants) {
#define ADD(d, m, n, ping_pong, stages)                                                                               \
  variants.push_back({{#m "x" #n "_" #ping_pong "_" #stages, d,                                                       \
                       launch_forward<__nv_bfloat16, ForwardConfig<d, m, n, false, ping_pong, stages>>},              \
                      false});                                                                                        \
  variants.push_back({{#m "x" #n "_" #ping_pong "_" #stages, d,                                                       \
                       launch_forward<__nv_bfloat16, ForwardConfig<d, m, n, true, ping_pong, stages>>},               \
                      true});
  // tile of queries and keys, taking turns, stages
  ADD(64, 192, 128, true, 2)
  ADD(64, 192, 128, false, 2)
  ADD(64, 192, 128, true, 4)
  ADD(64, 128, 192, true, 2)
#undef ADD
}

}  // namespace warpmeter::attention::flash_sm90::bench
