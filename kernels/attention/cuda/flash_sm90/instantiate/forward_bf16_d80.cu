#include <cuda_bf16.h>

#include "kernels/attention/cuda/flash_sm90/forward_launch.cuh"
#include "kernels/attention/cuda/flash_sm90/instantiations.hpp"

namespace warpmeter::attention::flash_sm90 {

const ForwardKernel kForwardBf16D80{"flash_sm90_d80_bf16", 80, launch_forward<__nv_bfloat16, ForwardD80<false>>};
const ForwardKernel kForwardBf16D80Causal{"flash_sm90_d80_causal_bf16", 80,
                                          launch_forward<__nv_bfloat16, ForwardD80<true>>};

}  // namespace warpmeter::attention::flash_sm90
