#include <cuda_bf16.h>

#include "kernels/attention/cuda/flash_sm80/backward_config.cuh"
#include "kernels/attention/cuda/flash_sm80/forward_config.cuh"
#include "kernels/attention/dev/flash_cuda_bench/variants.hpp"

namespace warpmeter::attention::flash_bench {

using namespace flash_sm80;

namespace {

// Name: rows x keys, warps, blocks an SM.
template <int kHeadDim, int kRows, int kKeys, int kWarps, int kBlocks, bool kQueriesInRegisters>
ForwardVariant forward(const char* name) {
  using T = __nv_bfloat16;
  using Traits = ForwardTraits<T, kHeadDim, kRows, kKeys, kWarps, kBlocks, kQueriesInRegisters>;
  ForwardVariant variant;
  variant.kernel = make_forward_kernel_of<Traits>(name);
  return variant;
}

}  // namespace

std::vector<ForwardVariant> forward_variants(int head_dim) {
  std::vector<ForwardVariant> variants = {{forward_kernel(DType::bf16, head_dim, true, shared_memory_limit())}};
  if (head_dim == 128) {
    variants.push_back(forward<128, 128, 64, 4, 2, false>("d128_128x64_w4_b2"));
    variants.push_back(forward<128, 256, 64, 8, 1, false>("d128_256x64_w8_b1"));
  }
  return variants;
}

std::vector<BackwardVariant> backward_variants(int head_dim) {
  using T = __nv_bfloat16;
  const int rows_m =
      head_dim == 64 ? BackwardConfig<T, 64, true>::Traits::kRowsM : BackwardConfig<T, 128, true>::Traits::kRowsM;
  return {{backward_kernel(DType::bf16, head_dim, true, shared_memory_limit()), rows_m}};
}

}  // namespace warpmeter::attention::flash_bench
