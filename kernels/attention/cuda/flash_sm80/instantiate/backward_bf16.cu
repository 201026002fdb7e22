#include <cuda_bf16.h>

#include "kernels/attention/cuda/flash_sm80/backward_config.cuh"
#include "kernels/attention/cuda/flash_sm80/instantiations.hpp"

namespace warpmeter::attention::flash_sm80 {

const BackwardKernel kBackwardBf16D32 = make_backward_kernel<__nv_bfloat16, 32, true>("flash_sm80_d32_bf16");
const BackwardKernel kBackwardBf16D64 = make_backward_kernel<__nv_bfloat16, 64, true>("flash_sm80_d64_bf16");
const BackwardKernel kBackwardBf16D96 = make_backward_kernel<__nv_bfloat16, 96, true>("flash_sm80_d96_bf16");
const BackwardKernel kBackwardBf16D128 = make_backward_kernel<__nv_bfloat16, 128, true>("flash_sm80_d128_bf16");
const BackwardKernel kBackwardBf16D256 = make_backward_kernel<__nv_bfloat16, 256, true>("flash_sm80_d256_bf16");

}  // namespace warpmeter::attention::flash_sm80
