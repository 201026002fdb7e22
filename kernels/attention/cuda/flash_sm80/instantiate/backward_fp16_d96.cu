#include <cuda_fp16.h>

#include "kernels/attention/cuda/flash_sm80/backward_config.cuh"
#include "kernels/attention/cuda/flash_sm80/instantiations.hpp"

namespace warpmeter::attention::flash_sm80 {

const BackwardKernel kBackwardFp16D96 = make_backward_kernel<__half, 96, true>("flash_sm80_d96_fp16");

}  // namespace warpmeter::attention::flash_sm80
