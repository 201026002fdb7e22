#include <cuda_bf16.h>

#include "kernels/attention/cuda/flash_sm90/forward_launch.cuh"
#include "kernels/attention/cuda/flash_sm90/instantiations.hpp"

namespace warpmeter::attention::flash_sm90 {

const ForwardKernel kForwardBf16D64Paged{"flash_sm90_d64_paged_bf16", 64,
                                         launch_forward<__nv_bfloat16, PagedConfig<ForwardD64<false>>>};
const ForwardKernel kForwardBf16D128Paged{"flash_sm90_d128_paged_bf16", 128,
                                          launch_forward<__nv_bfloat16, PagedConfig<ForwardD128<false>>>};

}  // namespace warpmeter::attention::flash_sm90
