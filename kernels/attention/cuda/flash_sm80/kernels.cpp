#include "kernels/attention/cuda/flash_sm80/kernels.hpp"

#include <string>

#include "kernels/attention/cuda/flash_sm80/instantiations.hpp"
#include "kernels/runtime/check.hpp"

namespace warpmeter::attention::flash_sm80 {

namespace {

template <class Kernel>
struct Entry {
  int head_dim;
  const Kernel* kernel;
};

// By ascending head dim.
constexpr Entry<ForwardKernel> kForwardBf16[] = {{32, &kForwardBf16D32},
                                                 {64, &kForwardBf16D64},
                                                 {96, &kForwardBf16D96},
                                                 {128, &kForwardBf16D128},
                                                 {256, &kForwardBf16D256}};
constexpr Entry<ForwardKernel> kForwardFp16[] = {{32, &kForwardFp16D32},
                                                 {64, &kForwardFp16D64},
                                                 {96, &kForwardFp16D96},
                                                 {128, &kForwardFp16D128},
                                                 {256, &kForwardFp16D256}};
constexpr Entry<ForwardKernel> kForwardBf16Elements[] = {{32, &kForwardBf16D32Elements},
                                                         {64, &kForwardBf16D64Elements},
                                                         {96, &kForwardBf16D96Elements},
                                                         {128, &kForwardBf16D128Elements},
                                                         {256, &kForwardBf16D256Elements}};
constexpr Entry<ForwardKernel> kForwardFp16Elements[] = {{32, &kForwardFp16D32Elements},
                                                         {64, &kForwardFp16D64Elements},
                                                         {96, &kForwardFp16D96Elements},
                                                         {128, &kForwardFp16D128Elements},
                                                         {256, &kForwardFp16D256Elements}};
constexpr Entry<BackwardKernel> kBackwardBf16[] = {{32, &kBackwardBf16D32},
                                                   {64, &kBackwardBf16D64},
                                                   {96, &kBackwardBf16D96},
                                                   {128, &kBackwardBf16D128},
                                                   {256, &kBackwardBf16D256}};
constexpr Entry<BackwardKernel> kBackwardFp16[] = {{32, &kBackwardFp16D32},
                                                   {64, &kBackwardFp16D64},
                                                   {96, &kBackwardFp16D96},
                                                   {128, &kBackwardFp16D128},
                                                   {256, &kBackwardFp16D256}};
constexpr Entry<BackwardKernel> kBackwardBf16Elements[] = {{32, &kBackwardBf16D32Elements},
                                                           {64, &kBackwardBf16D64Elements},
                                                           {96, &kBackwardBf16D96Elements},
                                                           {128, &kBackwardBf16D128Elements},
                                                           {256, &kBackwardBf16D256Elements}};
constexpr Entry<BackwardKernel> kBackwardFp16Elements[] = {{32, &kBackwardFp16D32Elements},
                                                           {64, &kBackwardFp16D64Elements},
                                                           {96, &kBackwardFp16D96Elements},
                                                           {128, &kBackwardFp16D128Elements},
                                                           {256, &kBackwardFp16D256Elements}};

template <class Table>
const auto& smallest_that_fits(const Table& table, int head_dim) {
  for (const auto& entry : table) {
    if (head_dim <= entry.head_dim) return *entry.kernel;
  }
  WM_CHECK(false, "no kernel for head dim " + std::to_string(head_dim));
  return *table[0].kernel;
}

}  // namespace

const ForwardKernel& forward_kernel(DType dtype, int head_dim, bool vector) {
  WM_CHECK(is_16bit(dtype), "these kernels take bf16 and fp16");
  if (vector) return smallest_that_fits(dtype == DType::bf16 ? kForwardBf16 : kForwardFp16, head_dim);
  return smallest_that_fits(dtype == DType::bf16 ? kForwardBf16Elements : kForwardFp16Elements, head_dim);
}

const BackwardKernel& backward_kernel(DType dtype, int head_dim, bool vector) {
  WM_CHECK(is_16bit(dtype), "these kernels take bf16 and fp16");
  if (vector) return smallest_that_fits(dtype == DType::bf16 ? kBackwardBf16 : kBackwardFp16, head_dim);
  return smallest_that_fits(dtype == DType::bf16 ? kBackwardBf16Elements : kBackwardFp16Elements, head_dim);
}

}  // namespace warpmeter::attention::flash_sm80
