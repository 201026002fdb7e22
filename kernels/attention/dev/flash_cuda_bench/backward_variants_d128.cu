#include <cuda_bf16.h>

#include "kernels/attention/cuda/flash_sm80/backward.cuh"
#include "kernels/attention/dev/flash_cuda_bench/variants.hpp"

namespace warpmeter::attention::flash_bench {

using namespace flash_sm80;

namespace {

// Name: queries x keys, keys a warp, warps, blocks an SM.
template <int kRows, int kKeysPerWarp, int kPairs, int kBlocks, int kDqWarpsM>
BackwardVariant variant(const char* name) {
  using Traits = BackwardTraits<__nv_bfloat16, 128, kRows, kKeysPerWarp, kPairs, kBlocks, kDqWarpsM>;
  return {128, {name, launch_backward<Traits>, backward_workspace<Traits>}, kRows};
}

}  // namespace

std::vector<BackwardVariant> backward_variants_d128() {
  return {
      variant<64, 32, 4, 1, 2>("d128_64x128_k32_w8_b1"),  //
      variant<32, 32, 4, 1, 2>("d128_32x128_k32_w8_b1"),  //
      variant<32, 32, 2, 2, 2>("d128_32x64_k32_w4_b2"),   //
      variant<32, 16, 4, 2, 2>("d128_32x64_k16_w8_b2"),
  };
}

}  // namespace warpmeter::attention::flash_bench
