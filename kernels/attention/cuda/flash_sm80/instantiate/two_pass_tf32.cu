#include "kernels/attention/cuda/flash_sm80/instantiations.hpp"
#include "kernels/attention/cuda/flash_sm80/tf32_config.cuh"

namespace warpmeter::attention::flash_sm80 {

const BackwardKernel kTwoPassTf32D64 = make_two_pass_kernel<float, false, 64>("flash_two_pass_d64_tf32");
const BackwardKernel kTwoPassTf32D128 = make_two_pass_kernel<float, false, 128>("flash_two_pass_d128_tf32");
const BackwardKernel kTwoPassTf32D256 = make_two_pass_kernel<float, false, 256>("flash_two_pass_d256_tf32");

// Tiles for devices with less shared memory.
const BackwardKernel kTwoPassTf32D128Shared99k =
    make_two_pass_kernel_of<TwoPassConfig99k<float, false, 128>>("flash_two_pass_d128_tf32_99k");
const BackwardKernel kTwoPassTf32D256Shared99k =
    make_two_pass_kernel_of<TwoPassConfig99k<float, false, 256>>("flash_two_pass_d256_tf32_99k");

}  // namespace warpmeter::attention::flash_sm80
