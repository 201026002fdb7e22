#include "kernels/attention/cuda/flash_sm80/instantiations.hpp"
#include "kernels/attention/cuda/flash_sm80/tf32_config.cuh"

namespace warpmeter::attention::flash_sm80 {

const ForwardKernel kForwardTf32D16 = make_tf32_forward_kernel<float, false, 16>("flash_sm80_d16_tf32");
const ForwardKernel kForwardTf32D32 = make_tf32_forward_kernel<float, false, 32>("flash_sm80_d32_tf32");
const ForwardKernel kForwardTf32D64 = make_tf32_forward_kernel<float, false, 64>("flash_sm80_d64_tf32");
const ForwardKernel kForwardTf32D128 = make_tf32_forward_kernel<float, false, 128>("flash_sm80_d128_tf32");
const ForwardKernel kForwardTf32D256 = make_tf32_forward_kernel<float, false, 256>("flash_sm80_d256_tf32");

}  // namespace warpmeter::attention::flash_sm80
