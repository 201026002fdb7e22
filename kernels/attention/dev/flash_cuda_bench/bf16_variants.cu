#include <cuda_bf16.h>

#include "kernels/attention/cuda/flash_sm80/backward_config.cuh"
#include "kernels/attention/dev/flash_cuda_bench/variants.hpp"

namespace warpmeter::attention::flash_bench {

using namespace flash_sm80;

std::vector<ForwardVariant> forward_variants(int head_dim) {
  return {{forward_kernel(DType::bf16, head_dim, true)}};
}

std::vector<BackwardVariant> backward_variants(int head_dim) {
  using T = __nv_bfloat16;
  const int rows_m =
      head_dim == 64 ? BackwardConfig<T, 64, true>::Traits::kRowsM : BackwardConfig<T, 128, true>::Traits::kRowsM;
  return {{backward_kernel(DType::bf16, head_dim, true), rows_m}};
}

}  // namespace warpmeter::attention::flash_bench
