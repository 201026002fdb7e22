#include "kernels/attention/cuda/row_ops.cuh"

namespace warpmeter::attention::detail {

const CudaRowOps kCudaRowOpsBf16 = row_ops_kernels::kRowOps<__nv_bfloat16>;

}  // namespace warpmeter::attention::detail
