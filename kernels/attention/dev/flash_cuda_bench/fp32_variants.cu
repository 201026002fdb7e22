#include "kernels/attention/cuda/flash_sm80/tf32_config.cuh"
#include "kernels/attention/dev/flash_cuda_bench/variants.hpp"

namespace warpmeter::attention::flash_bench {

using namespace flash_sm80;

namespace {

// Name: rows x keys, warps, blocks an SM.
template <int kHeadDim, int kRows, int kKeys, int kWarps, int kBlocks>
ForwardVariant forward(const char* name) {
  ForwardVariant variant;
  variant.kernel =
      make_tf32_forward_kernel_of<Tf32ForwardTraits<float, true, kHeadDim, kRows, kKeys, kWarps, kBlocks>>(name);
  return variant;
}

// Name: queries x keys, row tiles (16 keys) a warp, blocks an SM.
template <int kHeadDim, int kRows, int kKeys, int kM, int kBlocks>
BackwardVariant backward(const char* name) {
  using Traits = Tf32BackwardTraits<float, true, kHeadDim, kRows, kKeys, 1, kBlocks, true, kM>;
  BackwardVariant variant;
  variant.kernel = make_tf32_backward_kernel_of<Traits>(name);
  variant.rows_m = 0;
  return variant;
}

}  // namespace

std::vector<ForwardVariant> forward_variants(int head_dim) {
  std::vector<ForwardVariant> variants = {{forward_kernel(DType::fp32, head_dim, true, shared_memory_limit())}};
  if (head_dim == 16) {
    variants.push_back(forward<16, 128, 32, 4, 4>("d16_128x32_w4_b4"));
    variants.push_back(forward<16, 128, 64, 4, 2>("d16_128x64_w4_b2"));
  } else if (head_dim == 64) {
    variants.push_back(forward<64, 64, 64, 4, 2>("d64_64x64_w4_b2"));
    variants.push_back(forward<64, 64, 32, 2, 4>("d64_64x32_w2_b4"));
    variants.push_back(forward<64, 128, 32, 4, 2>("d64_128x32_w4_b2"));
    variants.push_back(forward<64, 256, 32, 8, 1>("d64_256x32_w8_b1"));
  } else if (head_dim == 128) {
    variants.push_back(forward<128, 128, 16, 4, 2>("d128_128x16_w4_b2"));
    variants.push_back(forward<128, 128, 32, 8, 1>("d128_128x32_w8_b1"));
    variants.push_back(forward<128, 256, 16, 8, 1>("d128_256x16_w8_b1"));
  }
  return variants;
}

std::vector<BackwardVariant> backward_variants(int head_dim) {
  std::vector<BackwardVariant> variants = {{backward_kernel(DType::fp32, head_dim, true, shared_memory_limit()), 0}};
  if (head_dim == 16) {
    variants.push_back(backward<16, 32, 128, 2, 3>("d16_32x128_m2_b3"));
    variants.push_back(backward<16, 64, 128, 2, 2>("d16_64x128_m2_b2"));
  } else if (head_dim == 64) {
    variants.push_back(backward<64, 32, 128, 1, 1>("d64_32x128_m1_b1"));
    variants.push_back(backward<64, 16, 128, 2, 2>("d64_16x128_m2_b2"));
    variants.push_back(backward<64, 16, 256, 2, 1>("d64_16x256_m2_b1"));
    variants.push_back(backward<64, 32, 256, 2, 1>("d64_32x256_m2_b1"));
  } else if (head_dim == 128) {
    variants.push_back(backward<128, 16, 64, 1, 2>("d128_16x64_m1_b2"));
    variants.push_back(backward<128, 16, 128, 1, 1>("d128_16x128_m1_b1"));
  }
  return variants;
}

}  // namespace warpmeter::attention::flash_bench
