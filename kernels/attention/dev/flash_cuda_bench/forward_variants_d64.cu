#include <cuda_bf16.h>

#include "kernels/attention/cuda/flash_sm80/forward.cuh"
#include "kernels/attention/dev/flash_cuda_bench/variants.hpp"

namespace warpmeter::attention::flash_bench {

using namespace flash_sm80;

namespace {

// Name: rows x keys, warps, blocks an SM, q: Q in registers, a: scores ahead.
template <int kRows, int kKeys, int kWarps, int kBlocks, bool kQ, bool kAhead>
ForwardVariant variant(const char* name) {
  return {64, {name, launch_forward<ForwardTraits<__nv_bfloat16, 64, kRows, kKeys, kWarps, kBlocks, kQ, kAhead>>}};
}

}  // namespace

std::vector<ForwardVariant> forward_variants_d64() {
  return {
      variant<128, 64, 4, 2, true, false>("d64_128x64_w4_b2_q"),   //
      variant<128, 128, 4, 2, false, false>("d64_128x128_w4_b2"),  //
      variant<64, 64, 4, 4, true, false>("d64_64x64_w4_b4_q"),     //
      variant<192, 64, 4, 1, false, false>("d64_192x64_w4_b1"),
  };
}

}  // namespace warpmeter::attention::flash_bench
