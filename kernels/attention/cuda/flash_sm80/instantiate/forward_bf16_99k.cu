#include <cuda_bf16.h>

#include "kernels/attention/cuda/flash_sm80/forward_config.cuh"
#include "kernels/attention/cuda/flash_sm80/instantiations.hpp"

/// Tiles for devices with less shared memory.
namespace warpmeter::attention::flash_sm80 {

const ForwardKernel kForwardBf16D256Shared99k =
    make_forward_kernel_99k<__nv_bfloat16, 256, true>("flash_sm80_d256_bf16_99k");
const ForwardKernel kForwardBf16D256ElementsShared99k =
    make_forward_kernel_99k<__nv_bfloat16, 256, false>("flash_sm80_d256_bf16_elements_99k");

}  // namespace warpmeter::attention::flash_sm80
