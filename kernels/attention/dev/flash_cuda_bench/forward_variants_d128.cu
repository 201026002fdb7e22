#include <cuda_bf16.h>

#include "kernels/attention/cuda/flash_sm80/forward.cuh"
#include "kernels/attention/dev/flash_cuda_bench/variants.hpp"

namespace warpmeter::attention::flash_bench {

using namespace flash_sm80;

namespace {

// Name: rows x keys, warps, blocks an SM, q: Q in registers, a: scores ahead.
template <int kRows, int kKeys, int kWarps, int kBlocks, bool kQ, bool kAhead>
ForwardVariant variant(const char* name) {
  return {128, {name, launch_forward<ForwardTraits<__nv_bfloat16, 128, kRows, kKeys, kWarps, kBlocks, kQ, kAhead>>}};
}

}  // namespace

std::vector<ForwardVariant> forward_variants_d128() {
  return {
      variant<128, 64, 4, 2, false, false>("d128_128x64_w4_b2"),   //
      variant<128, 32, 4, 2, false, false>("d128_128x32_w4_b2"),   //
      variant<128, 64, 8, 2, false, false>("d128_128x64_w8_b2"),   //
      variant<128, 64, 8, 1, true, true>("d128_128x64_w8_b1_qa"),  //
      variant<64, 64, 4, 3, true, false>("d128_64x64_w4_b3_q"),
      variant<64, 64, 4, 3, true, true>("d128_64x64_w4_b3_qa"),
      variant<64, 64, 4, 2, true, false>("d128_64x64_w4_b2_q"),
      variant<64, 64, 4, 2, true, true>("d128_64x64_w4_b2_qa"),
      variant<64, 32, 4, 3, false, false>("d128_64x32_w4_b3"),
      variant<64, 32, 4, 4, false, false>("d128_64x32_w4_b4"),
  };
}

}  // namespace warpmeter::attention::flash_bench
