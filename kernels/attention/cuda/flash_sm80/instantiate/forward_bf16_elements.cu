#include <cuda_bf16.h>

#include "kernels/attention/cuda/flash_sm80/forward_config.cuh"
#include "kernels/attention/cuda/flash_sm80/instantiations.hpp"

// Rows that are not 16-byte aligned, copied element by element.
namespace warpmeter::attention::flash_sm80 {

const ForwardKernel kForwardBf16D32Elements =
    make_forward_kernel<__nv_bfloat16, 32, false>("flash_sm80_d32_bf16_elements");
const ForwardKernel kForwardBf16D64Elements =
    make_forward_kernel<__nv_bfloat16, 64, false>("flash_sm80_d64_bf16_elements");
const ForwardKernel kForwardBf16D96Elements =
    make_forward_kernel<__nv_bfloat16, 96, false>("flash_sm80_d96_bf16_elements");
const ForwardKernel kForwardBf16D128Elements =
    make_forward_kernel<__nv_bfloat16, 128, false>("flash_sm80_d128_bf16_elements");
const ForwardKernel kForwardBf16D256Elements =
    make_forward_kernel<__nv_bfloat16, 256, false>("flash_sm80_d256_bf16_elements");

}  // namespace warpmeter::attention::flash_sm80
