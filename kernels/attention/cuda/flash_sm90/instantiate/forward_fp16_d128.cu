#include <cuda_fp16.h>

#include "kernels/attention/cuda/flash_sm90/forward_launch.cuh"
#include "kernels/attention/cuda/flash_sm90/instantiations.hpp"

namespace warpmeter::attention::flash_sm90 {

const ForwardKernel kForwardFp16D128{"flash_sm90_d128_fp16", 128, launch_forward<__half, ForwardD128<false>>};
const ForwardKernel kForwardFp16D128Causal{"flash_sm90_d128_causal_fp16", 128,
                                           launch_forward<__half, ForwardD128<true>>};

}  // namespace warpmeter::attention::flash_sm90
