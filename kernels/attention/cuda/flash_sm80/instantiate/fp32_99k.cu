#include "kernels/attention/cuda/flash_sm80/instantiations.hpp"
#include "kernels/attention/cuda/flash_sm80/tf32_config.cuh"

/// Tiles for devices with less shared memory.
namespace warpmeter::attention::flash_sm80 {

const ForwardKernel kForwardFp32D128Shared99k =
    make_tf32_forward_kernel_of<Tf32Config99k<float, true, 128>::Forward>("flash_sm80_d128_fp32_99k");
const BackwardKernel kBackwardFp32D128Shared99k =
    make_tf32_backward_kernel_of<Tf32Config99k<float, true, 128>::Backward>("flash_sm80_d128_fp32_99k");
const ForwardKernel kForwardFp32D256Shared99k =
    make_tf32_forward_kernel_of<Tf32Config99k<float, true, 256>::Forward>("flash_sm80_d256_fp32_99k");
const BackwardKernel kBackwardFp32D256Shared99k =
    make_tf32_backward_kernel_of<Tf32Config99k<float, true, 256>::Backward>("flash_sm80_d256_fp32_99k");
const BackwardKernel kBackwardFp32D128Shared163k =
    make_tf32_backward_kernel_of<Tf32BackwardTraits128Of163k<float, true>>("flash_sm80_d128_fp32_163k");

}  // namespace warpmeter::attention::flash_sm80
