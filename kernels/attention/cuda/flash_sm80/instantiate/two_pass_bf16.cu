#include <cuda_bf16.h>

#include "kernels/attention/cuda/flash_sm80/instantiations.hpp"
#include "kernels/attention/cuda/flash_sm80/tf32_config.cuh"

namespace warpmeter::attention::flash_sm80 {

const BackwardKernel kTwoPassBf16D64 = make_two_pass_kernel<__nv_bfloat16, false, 64>("flash_two_pass_d64_bf16");
const BackwardKernel kTwoPassBf16D128 = make_two_pass_kernel<__nv_bfloat16, false, 128>("flash_two_pass_d128_bf16");
const BackwardKernel kTwoPassBf16D256 = make_two_pass_kernel<__nv_bfloat16, false, 256>("flash_two_pass_d256_bf16");

// Tiles for devices with less shared memory.
const BackwardKernel kTwoPassBf16D128Shared99k =
    make_two_pass_kernel_of<TwoPassConfig99k<__nv_bfloat16, false, 128>>("flash_two_pass_d128_bf16_99k");
const BackwardKernel kTwoPassBf16D256Shared99k =
    make_two_pass_kernel_of<TwoPassConfig99k<__nv_bfloat16, false, 256>>("flash_two_pass_d256_bf16_99k");

}  // namespace warpmeter::attention::flash_sm80
