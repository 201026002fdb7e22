#include <cuda_bf16.h>

#include "kernels/attention/cuda/flash_sm80/backward_config.cuh"
#include "kernels/attention/cuda/flash_sm80/instantiations.hpp"

/// Tiles for devices with less shared memory.
namespace warpmeter::attention::flash_sm80 {

const BackwardKernel kBackwardBf16D64Shared99k =
    make_backward_kernel_99k<__nv_bfloat16, 64, true>("flash_sm80_d64_bf16_99k");
const BackwardKernel kBackwardBf16D96Shared99k =
    make_backward_kernel_99k<__nv_bfloat16, 96, true>("flash_sm80_d96_bf16_99k");
const BackwardKernel kBackwardBf16D128Shared99k =
    make_backward_kernel_99k<__nv_bfloat16, 128, true>("flash_sm80_d128_bf16_99k");
const BackwardKernel kBackwardBf16D256Shared99k =
    make_backward_kernel_99k<__nv_bfloat16, 256, true>("flash_sm80_d256_bf16_99k");
const BackwardKernel kBackwardBf16D128Shared163k =
    make_backward_kernel_of<BackwardTraits128Of163k<__nv_bfloat16, true>>("flash_sm80_d128_bf16_163k");
const BackwardKernel kBackwardBf16D64ElementsShared99k =
    make_backward_kernel_99k<__nv_bfloat16, 64, false>("flash_sm80_d64_bf16_elements_99k");
const BackwardKernel kBackwardBf16D96ElementsShared99k =
    make_backward_kernel_99k<__nv_bfloat16, 96, false>("flash_sm80_d96_bf16_elements_99k");
const BackwardKernel kBackwardBf16D128ElementsShared99k =
    make_backward_kernel_99k<__nv_bfloat16, 128, false>("flash_sm80_d128_bf16_elements_99k");
const BackwardKernel kBackwardBf16D256ElementsShared99k =
    make_backward_kernel_99k<__nv_bfloat16, 256, false>("flash_sm80_d256_bf16_elements_99k");
const BackwardKernel kBackwardBf16D128ElementsShared163k =
    make_backward_kernel_of<BackwardTraits128Of163k<__nv_bfloat16, false>>("flash_sm80_d128_bf16_elements_163k");

}  // namespace warpmeter::attention::flash_sm80
