#include <cuda_fp16.h>

#include "kernels/attention/cuda/flash_sm90/forward_launch.cuh"
#include "kernels/attention/cuda/flash_sm90/instantiations.hpp"

namespace warpmeter::attention::flash_sm90 {

const ForwardKernel kForwardFp16D64{"flash_sm90_d64_fp16", 64, launch_forward<__half, ForwardD64<false>>};
const ForwardKernel kForwardFp16D64Causal{"flash_sm90_d64_causal_fp16", 64, launch_forward<__half, ForwardD64<true>>};

}  // namespace warpmeter::attention::flash_sm90
