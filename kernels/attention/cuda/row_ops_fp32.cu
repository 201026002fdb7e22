#include "kernels/attention/cuda/row_ops.cuh"

namespace warpmeter::attention::detail {

const CudaRowOps kCudaRowOpsFp32 = row_ops_kernels::kRowOps<float>;

}  // namespace warpmeter::attention::detail
