#include <cuda_fp16.h>

#include "kernels/attention/cuda/flash_sm80/forward_config.cuh"
#include "kernels/attention/cuda/flash_sm80/instantiations.hpp"

// Rows that are not 16-byte aligned, copied element by element.
namespace warpmeter::attention::flash_sm80 {

const ForwardKernel kForwardFp16D32Elements = make_forward_kernel<__half, 32, false>("flash_sm80_d32_fp16_elements");
const ForwardKernel kForwardFp16D64Elements = make_forward_kernel<__half, 64, false>("flash_sm80_d64_fp16_elements");
const ForwardKernel kForwardFp16D96Elements = make_forward_kernel<__half, 96, false>("flash_sm80_d96_fp16_elements");
const ForwardKernel kForwardFp16D128Elements = make_forward_kernel<__half, 128, false>("flash_sm80_d128_fp16_elements");
const ForwardKernel kForwardFp16D256Elements = make_forward_kernel<__half, 256, false>("flash_sm80_d256_fp16_elements");

}  // namespace warpmeter::attention::flash_sm80
