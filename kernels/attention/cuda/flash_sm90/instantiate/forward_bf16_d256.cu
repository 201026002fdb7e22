#include <cuda_bf16.h>

#include "kernels/attention/cuda/flash_sm90/forward_launch.cuh"
#include "kernels/attention/cuda/flash_sm90/instantiations.hpp"

namespace warpmeter::attention::flash_sm90 {

const ForwardKernel kForwardBf16D256{"flash_sm90_d256_bf16", 256, launch_forward<__nv_bfloat16, ForwardD256<false>>};
const ForwardKernel kForwardBf16D256Causal{"flash_sm90_d256_causal_bf16", 256,
                                           launch_forward<__nv_bfloat16, ForwardD256<true>>};

}  // namespace warpmeter::attention::flash_sm90
