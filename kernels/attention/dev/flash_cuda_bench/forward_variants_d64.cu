#include <cuda_bf16.h>

#include "kernels/attention/cuda/flash_sm80/forward.cuh"
#include "kernels/attention/dev/flash_cuda_bench/variants.hpp"

namespace warpmeter::attention::flash_bench {

using namespace flash_sm80;

// Name: rows x keys, warps, blocks an SM, q: Q in registers, a: scores ahead.
template <int kRows, int kKeys, int kWarps, int kBlocks, bool kQ, bool kAhead>
ForwardVariant variant(const char* name) {
  return {64, {name, launch_forward<ForwardTraits<__nv_bfloat16, 64, kRows, kKeys, kWarps, kBlocks, kQ, kAhead>>}};
}

std::vector<ForwardVariant> forward_variants_d64() {
  return {
      variant<128, 64, 4, 2, true, false>("d64_128x64_w4_b2_q"),   //
      variant<128, 64, 4, 2, true, true>("d64_128x64_w4_b2_qa"),   //
      variant<128, 128, 4, 2, false, false>("d64_128x128_w4_b2"),  //
      variant<64, 64, 4, 4, true, false>("d64_64x64_w4_b4_q"),     //
      variant<64, 64, 4, 3, true, true>("d64_64x64_w4_b3_qa"),     //
      variant<64, 64, 4, 4, true, true>("d64_64x64_w4_b4_qa"),     //
      variant<64, 128, 4, 3, true, false>("d64_64x128_w4_b3_q"),   //
      variant<64, 128, 4, 3, true, true>("d64_64x128_w4_b3_qa"),   //
      variant<192, 64, 4, 1, false, false>("d64_192x64_w4_b1"),    //
      variant<128, 64, 8, 2, true, false>("d64_128x64_w8_b2_q"),   //
      variant<256, 128, 8, 1, true, false>("d64_256x128_w8_b1_q"),
  };
}

}  // namespace warpmeter::attention::flash_bench
