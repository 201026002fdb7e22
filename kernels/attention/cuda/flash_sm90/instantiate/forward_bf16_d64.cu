#include <cuda_bf16.h>

#include "kernels/attention/cuda/flash_sm90/forward_launch.cuh"
#include "kernels/attention/cuda/flash_sm90/instantiations.hpp"

namespace warpmeter::attention::flash_sm90 {

const ForwardKernel kForwardBf16D64{"flash_sm90_d64_bf16", 64, launch_forward<__nv_bfloat16, ForwardD64<false>>};
const ForwardKernel kForwardBf16D64Causal{"flash_sm90_d64_causal_bf16", 64,
                                          launch_forward<__nv_bfloat16, ForwardD64<true>>};

}  // namespace warpmeter::attention::flash_sm90
