#include "kernels/attention/cuda/row_ops.cuh"

namespace warpmeter::attention::detail {

const CudaRowOps kCudaRowOpsFp16 = row_ops_kernels::kRowOps<__half>;

}  // namespace warpmeter::attention::detail
