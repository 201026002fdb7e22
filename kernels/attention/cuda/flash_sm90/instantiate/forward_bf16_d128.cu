#include <cuda_bf16.h>

#include "kernels/attention/cuda/flash_sm90/forward_launch.cuh"
#include "kernels/attention/cuda/flash_sm90/instantiations.hpp"

namespace warpmeter::attention::flash_sm90 {

const ForwardKernel kForwardBf16D128{"flash_sm90_d128_bf16", 128, launch_forward<__nv_bfloat16, ForwardD128<false>>};
const ForwardKernel kForwardBf16D128Causal{"flash_sm90_d128_causal_bf16", 128,
                                           launch_forward<__nv_bfloat16, ForwardD128<true>>};

}  // namespace warpmeter::attention::flash_sm90
