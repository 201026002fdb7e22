#include "kernels/layers/detail/row_kernels.hpp"

#include "kernels/runtime/check.hpp"
#include "kernels/runtime/cpu_isa.hpp"

namespace warpmeter::layers::detail {

namespace {

struct Variants {
  const RowKernels *fp32, *bf16, *fp16;
  const MasterKernels* master;
};

Variants variants(CpuIsa isa) {
#if defined(__x86_64__)
  switch (isa) {
    case CpuIsa::avx512:
      return {avx512::row_kernels_fp32(), avx512::row_kernels_bf16(), avx512::row_kernels_fp16(),
              avx512::master_kernels()};
    case CpuIsa::avx2:
      return {avx2::row_kernels_fp32(), avx2::row_kernels_bf16(), avx2::row_kernels_fp16(), avx2::master_kernels()};
    case CpuIsa::generic:
      break;
  }
#endif
  static_cast<void>(isa);
  return {generic::row_kernels_fp32(), generic::row_kernels_bf16(), generic::row_kernels_fp16(),
          generic::master_kernels()};
}

const Variants& chosen() {
  static const Variants variants_of_this_machine = variants(cpu_isa());
  return variants_of_this_machine;
}

}  // namespace

const RowKernels& row_kernels(DType dtype) {
  switch (storage_of(dtype)) {
    case DType::fp32:
      return *chosen().fp32;
    case DType::bf16:
      return *chosen().bf16;
    case DType::fp16:
      return *chosen().fp16;
    default:
      break;
  }
  WM_CHECK(false, "no row kernels for this type");
}

const MasterKernels& master_kernels() {
  return *chosen().master;
}

}  // namespace warpmeter::layers::detail
