#include <cuda_bf16.h>

#include "kernels/attention/cuda/flash_sm80/backward_config.cuh"
#include "kernels/attention/cuda/flash_sm80/instantiations.hpp"

// Rows that are not 16-byte aligned, copied element by element.
namespace warpmeter::attention::flash_sm80 {

const BackwardKernel kBackwardBf16D32Elements =
    make_backward_kernel<__nv_bfloat16, 32, false>("flash_sm80_d32_bf16_elements");
const BackwardKernel kBackwardBf16D64Elements =
    make_backward_kernel<__nv_bfloat16, 64, false>("flash_sm80_d64_bf16_elements");
const BackwardKernel kBackwardBf16D96Elements =
    make_backward_kernel<__nv_bfloat16, 96, false>("flash_sm80_d96_bf16_elements");
const BackwardKernel kBackwardBf16D128Elements =
    make_backward_kernel<__nv_bfloat16, 128, false>("flash_sm80_d128_bf16_elements");
const BackwardKernel kBackwardBf16D256Elements =
    make_backward_kernel<__nv_bfloat16, 256, false>("flash_sm80_d256_bf16_elements");

}  // namespace warpmeter::attention::flash_sm80
