#include <cuda_fp16.h>

#include "kernels/attention/cuda/flash_sm90/forward_launch.cuh"
#include "kernels/attention/cuda/flash_sm90/instantiations.hpp"

namespace warpmeter::attention::flash_sm90 {

const ForwardKernel kForwardFp16D256{"flash_sm90_d256_fp16", 256, launch_forward<__half, ForwardD256<false>>};
const ForwardKernel kForwardFp16D256Causal{"flash_sm90_d256_causal_fp16", 256,
                                           launch_forward<__half, ForwardD256<true>>};

}  // namespace warpmeter::attention::flash_sm90
