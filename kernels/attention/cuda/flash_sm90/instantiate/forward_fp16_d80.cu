#include <cuda_fp16.h>

#include "kernels/attention/cuda/flash_sm90/forward_launch.cuh"
#include "kernels/attention/cuda/flash_sm90/instantiations.hpp"

namespace warpmeter::attention::flash_sm90 {

const ForwardKernel kForwardFp16D80{"flash_sm90_d80_fp16", 80, launch_forward<__half, ForwardD80<false>>};
const ForwardKernel kForwardFp16D80Causal{"flash_sm90_d80_causal_fp16", 80, launch_forward<__half, ForwardD80<true>>};

}  // namespace warpmeter::attention::flash_sm90
