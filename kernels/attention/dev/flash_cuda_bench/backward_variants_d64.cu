#include <cuda_bf16.h>

#include "kernels/attention/cuda/flash_sm80/backward.cuh"
#include "kernels/attention/dev/flash_cuda_bench/variants.hpp"

namespace warpmeter::attention::flash_bench {

using namespace flash_sm80;

namespace {

// Name: queries x keys, keys a warp, warps, blocks an SM, j: one warp does both dK and dV of its keys.
template <int kRows, int kKeysPerWarp, int kPairs, int kBlocks, int kDqWarpsM, bool kJoint = false>
BackwardVariant variant(const char* name) {
  using Traits = BackwardTraits<__nv_bfloat16, 64, kRows, kKeysPerWarp, kPairs, kBlocks, kDqWarpsM, true, kJoint>;
  return {64, {name, launch_backward<Traits>, backward_workspace<Traits>}, kRows};
}

}  // namespace

std::vector<BackwardVariant> backward_variants_d64() {
  return {
      variant<64, 32, 4, 2, 2, true>("d64_64x128_k32_w4_b2_j"),  //
      variant<32, 32, 4, 2, 2, true>("d64_32x128_k32_w4_b2_j"),  //
      variant<32, 64, 4, 1, 2>("d64_32x256_k64_w8_b1"),          //
      variant<64, 32, 2, 2, 2>("d64_64x64_k32_w4_b2"),
  };
}

}  // namespace warpmeter::attention::flash_bench
