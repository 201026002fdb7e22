#include <cuda_bf16.h>

#include "kernels/attention/cuda/flash_sm90/forward_launch.cuh"
#include "kernels/attention/cuda/flash_sm90/instantiations.hpp"

namespace warpmeter::attention::flash_sm90 {

const ForwardKernel kForwardBf16D96{"flash_sm90_d96_bf16", 96, launch_forward<__nv_bfloat16, ForwardD96<false>>};
const ForwardKernel kForwardBf16D96Causal{"flash_sm90_d96_causal_bf16", 96,
                                          launch_forward<__nv_bfloat16, ForwardD96<true>>};

}  // namespace warpmeter::attention::flash_sm90
