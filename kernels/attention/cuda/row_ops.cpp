#include "kernels/attention/cuda/row_ops.hpp"

#include "kernels/runtime/check.hpp"

namespace warpmeter::attention::detail {

const CudaRowOps& cuda_row_ops(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return kCudaRowOpsBf16;
    case DType::fp16:
      return kCudaRowOpsFp16;
    default:
      WM_CHECK(storage_of(dtype) == DType::fp32, "score matrices are of fp32, bf16 or fp16");
      return kCudaRowOpsFp32;
  }
}

}  // namespace warpmeter::attention::detail
