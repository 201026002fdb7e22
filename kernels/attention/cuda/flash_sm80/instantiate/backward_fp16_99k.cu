#include <cuda_fp16.h>

#include "kernels/attention/cuda/flash_sm80/backward_config.cuh"
#include "kernels/attention/cuda/flash_sm80/instantiations.hpp"

/// Tiles for devices with less shared memory.
namespace warpmeter::attention::flash_sm80 {

const BackwardKernel kBackwardFp16D64Shared99k = make_backward_kernel_99k<__half, 64, true>("flash_sm80_d64_fp16_99k");
const BackwardKernel kBackwardFp16D96Shared99k = make_backward_kernel_99k<__half, 96, true>("flash_sm80_d96_fp16_99k");
const BackwardKernel kBackwardFp16D128Shared99k =
    make_backward_kernel_99k<__half, 128, true>("flash_sm80_d128_fp16_99k");
const BackwardKernel kBackwardFp16D256Shared99k =
    make_backward_kernel_99k<__half, 256, true>("flash_sm80_d256_fp16_99k");
const BackwardKernel kBackwardFp16D128Shared163k =
    make_backward_kernel_of<BackwardTraits128Of163k<__half, true>>("flash_sm80_d128_fp16_163k");
const BackwardKernel kBackwardFp16D64ElementsShared99k =
    make_backward_kernel_99k<__half, 64, false>("flash_sm80_d64_fp16_elements_99k");
const BackwardKernel kBackwardFp16D96ElementsShared99k =
    make_backward_kernel_99k<__half, 96, false>("flash_sm80_d96_fp16_elements_99k");
const BackwardKernel kBackwardFp16D128ElementsShared99k =
    make_backward_kernel_99k<__half, 128, false>("flash_sm80_d128_fp16_elements_99k");
const BackwardKernel kBackwardFp16D256ElementsShared99k =
    make_backward_kernel_99k<__half, 256, false>("flash_sm80_d256_fp16_elements_99k");
const BackwardKernel kBackwardFp16D128ElementsShared163k =
    make_backward_kernel_of<BackwardTraits128Of163k<__half, false>>("flash_sm80_d128_fp16_elements_163k");

}  // namespace warpmeter::attention::flash_sm80
