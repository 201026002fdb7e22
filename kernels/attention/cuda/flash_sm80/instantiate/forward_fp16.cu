#include <cuda_fp16.h>

#include "kernels/attention/cuda/flash_sm80/forward_config.cuh"
#include "kernels/attention/cuda/flash_sm80/instantiations.hpp"

namespace warpmeter::attention::flash_sm80 {

const ForwardKernel kForwardFp16D32 = make_forward_kernel<__half, 32, true>("flash_sm80_d32_fp16");
const ForwardKernel kForwardFp16D64 = make_forward_kernel<__half, 64, true>("flash_sm80_d64_fp16");
const ForwardKernel kForwardFp16D96 = make_forward_kernel<__half, 96, true>("flash_sm80_d96_fp16");
const ForwardKernel kForwardFp16D128 = make_forward_kernel<__half, 128, true>("flash_sm80_d128_fp16");
const ForwardKernel kForwardFp16D256 = make_forward_kernel<__half, 256, true>("flash_sm80_d256_fp16");

}  // namespace warpmeter::attention::flash_sm80
