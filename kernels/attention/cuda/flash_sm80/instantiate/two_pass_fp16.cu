#include <cuda_fp16.h>

#include "kernels/attention/cuda/flash_sm80/instantiations.hpp"
#include "kernels/attention/cuda/flash_sm80/tf32_config.cuh"

namespace warpmeter::attention::flash_sm80 {

const BackwardKernel kTwoPassFp16D64 = make_two_pass_kernel<__half, false, 64>("flash_two_pass_d64_fp16");
const BackwardKernel kTwoPassFp16D128 = make_two_pass_kernel<__half, false, 128>("flash_two_pass_d128_fp16");
const BackwardKernel kTwoPassFp16D256 = make_two_pass_kernel<__half, false, 256>("flash_two_pass_d256_fp16");

// Tiles for devices with less shared memory.
const BackwardKernel kTwoPassFp16D128Shared99k =
    make_two_pass_kernel_of<TwoPassConfig99k<__half, false, 128>>("flash_two_pass_d128_fp16_99k");
const BackwardKernel kTwoPassFp16D256Shared99k =
    make_two_pass_kernel_of<TwoPassConfig99k<__half, false, 256>>("flash_two_pass_d256_fp16_99k");

}  // namespace warpmeter::attention::flash_sm80
