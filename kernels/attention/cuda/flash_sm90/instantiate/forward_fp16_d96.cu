#include <cuda_fp16.h>

#include "kernels/attention/cuda/flash_sm90/forward_launch.cuh"
#include "kernels/attention/cuda/flash_sm90/instantiations.hpp"

namespace warpmeter::attention::flash_sm90 {

const ForwardKernel kForwardFp16D96{"flash_sm90_d96_fp16", 96, launch_forward<__half, ForwardD96<false>>};
const ForwardKernel kForwardFp16D96Causal{"flash_sm90_d96_causal_fp16", 96, launch_forward<__half, ForwardD96<true>>};

}  // namespace warpmeter::attention::flash_sm90
