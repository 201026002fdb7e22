#include "kernels/attention/detail/row_ops.hpp"

#include "kernels/runtime/check.hpp"
#include "kernels/runtime/cpu_isa.hpp"

namespace warpmeter::attention::detail {

namespace {

struct Variants {
  const RowOps *fp32, *bf16, *fp16;
};

Variants variants(CpuIsa isa) {
#if defined(__x86_64__)
  switch (isa) {
    case CpuIsa::avx512:
      return {avx512::row_ops_fp32(), avx512::row_ops_bf16(), avx512::row_ops_fp16()};
    case CpuIsa::avx2:
      return {avx2::row_ops_fp32(), avx2::row_ops_bf16(), avx2::row_ops_fp16()};
    case CpuIsa::generic:
      break;
  }
#endif
  static_cast<void>(isa);
  return {generic::row_ops_fp32(), generic::row_ops_bf16(), generic::row_ops_fp16()};
}

}  // namespace

const RowOps& row_ops(DType dtype) {
  static const Variants chosen = variants(cpu_isa());
  switch (storage_of(dtype)) {
    case DType::fp32:
      return *chosen.fp32;
    case DType::bf16:
      return *chosen.bf16;
    case DType::fp16:
      return *chosen.fp16;
    default:
      break;
  }
  WM_CHECK(false, "no row operations for this type");
}

}  // namespace warpmeter::attention::detail
