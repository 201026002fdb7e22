#include "kernels/attention/cuda/flash_sm90/kernels.hpp"

#include "kernels/attention/cuda/flash_sm90/instantiations.hpp"

namespace warpmeter::attention::flash_sm90 {

namespace {

struct Entry {
  const ForwardKernel* full;
  const ForwardKernel* causal;
};

constexpr Entry kBf16[] = {{&kForwardBf16D64, &kForwardBf16D64Causal},
                           {&kForwardBf16D80, &kForwardBf16D80Causal},
                           {&kForwardBf16D96, &kForwardBf16D96Causal},
                           {&kForwardBf16D128, &kForwardBf16D128Causal},
                           {&kForwardBf16D256, &kForwardBf16D256Causal}};
constexpr Entry kFp16[] = {{&kForwardFp16D64, &kForwardFp16D64Causal},
                           {&kForwardFp16D80, &kForwardFp16D80Causal},
                           {&kForwardFp16D96, &kForwardFp16D96Causal},
                           {&kForwardFp16D128, &kForwardFp16D128Causal},
                           {&kForwardFp16D256, &kForwardFp16D256Causal}};
constexpr const ForwardKernel* kPagedBf16[] = {&kForwardBf16D64Paged, &kForwardBf16D128Paged};
constexpr const ForwardKernel* kPagedFp16[] = {&kForwardFp16D64Paged, &kForwardFp16D128Paged};

}  // namespace

const ForwardKernel* forward_kernel(DType dtype, int head_dim, bool causal) {
  if (!is_16bit(dtype)) return nullptr;
  for (const Entry& entry : dtype == DType::bf16 ? kBf16 : kFp16) {
    if (entry.full->head_dim == head_dim) return causal ? entry.causal : entry.full;
  }
  return nullptr;
}

const ForwardKernel* paged_forward_kernel(DType dtype, int head_dim) {
  if (!is_16bit(dtype)) return nullptr;
  for (const ForwardKernel* kernel : dtype == DType::bf16 ? kPagedBf16 : kPagedFp16) {
    if (kernel->head_dim == head_dim) return kernel;
  }
  return nullptr;
}

}  // namespace warpmeter::attention::flash_sm90
