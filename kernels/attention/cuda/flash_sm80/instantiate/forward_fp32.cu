#include "kernels/attention/cuda/flash_sm80/instantiations.hpp"
#include "kernels/attention/cuda/flash_sm80/tf32_config.cuh"

namespace warpmeter::attention::flash_sm80 {

const ForwardKernel kForwardFp32D16 = make_tf32_forward_kernel<float, true, 16>("flash_sm80_d16_fp32");
const ForwardKernel kForwardFp32D32 = make_tf32_forward_kernel<float, true, 32>("flash_sm80_d32_fp32");
const ForwardKernel kForwardFp32D64 = make_tf32_forward_kernel<float, true, 64>("flash_sm80_d64_fp32");
const ForwardKernel kForwardFp32D128 = make_tf32_forward_kernel<float, true, 128>("flash_sm80_d128_fp32");
const ForwardKernel kForwardFp32D256 = make_tf32_forward_kernel<float, true, 256>("flash_sm80_d256_fp32");

}  // namespace warpmeter::attention::flash_sm80
