#include "kernels/attention/cuda/flash_sm80/instantiations.hpp"
#include "kernels/attention/cuda/flash_sm80/tf32_config.cuh"

namespace warpmeter::attention::flash_sm80 {

const BackwardKernel kTwoPassFp32D64 = make_two_pass_kernel<float, true, 64>("flash_two_pass_d64_fp32");
const BackwardKernel kTwoPassFp32D128 = make_two_pass_kernel<float, true, 128>("flash_two_pass_d128_fp32");
const BackwardKernel kTwoPassFp32D256 = make_two_pass_kernel<float, true, 256>("flash_two_pass_d256_fp32");

// Tiles for devices with less shared memory.
const BackwardKernel kTwoPassFp32D128Shared99k =
    make_two_pass_kernel_of<TwoPassConfig99k<float, true, 128>>("flash_two_pass_d128_fp32_99k");
const BackwardKernel kTwoPassFp32D256Shared99k =
    make_two_pass_kernel_of<TwoPassConfig99k<float, true, 256>>("flash_two_pass_d256_fp32_99k");

}  // namespace warpmeter::attention::flash_sm80
