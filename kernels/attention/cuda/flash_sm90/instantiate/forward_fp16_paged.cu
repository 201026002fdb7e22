#include <cuda_fp16.h>

#include "kernels/attention/cuda/flash_sm90/forward_launch.cuh"
#include "kernels/attention/cuda/flash_sm90/instantiations.hpp"

namespace warpmeter::attention::flash_sm90 {

const ForwardKernel kForwardFp16D64Paged{"flash_sm90_d64_paged_fp16", 64,
                                         launch_forward<__half, PagedConfig<ForwardD64<false>>>};
const ForwardKernel kForwardFp16D128Paged{"flash_sm90_d128_paged_fp16", 128,
                                          launch_forward<__half, PagedConfig<ForwardD128<false>>>};

}  // namespace warpmeter::attention::flash_sm90
