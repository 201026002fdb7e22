#include <cuda_bf16.h>

#include "kernels/attention/cuda/flash_sm80/forward_config.cuh"
#include "kernels/attention/cuda/flash_sm80/instantiations.hpp"

namespace warpmeter::attention::flash_sm80 {

const ForwardKernel kForwardBf16D128 = make_forward_kernel<__nv_bfloat16, 128, true>("flash_sm80_d128_bf16");

}  // namespace warpmeter::attention::flash_sm80
