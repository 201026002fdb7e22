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
constexpr Entry<ForwardKernel> kForwardFp32[] = {{16, &kForwardFp32D16},
                                                 {32, &kForwardFp32D32},
                                                 {64, &kForwardFp32D64},
                                                 {128, &kForwardFp32D128},
                                                 {256, &kForwardFp32D256}};
constexpr Entry<BackwardKernel> kBackwardFp32[] = {{16, &kBackwardFp32D16},
                                                   {32, &kBackwardFp32D32},
                                                   {64, &kBackwardFp32D64},
                                                   {128, &kBackwardFp32D128},
                                                   {256, &kBackwardFp32D256}};
constexpr Entry<ForwardKernel> kForwardTf32[] = {{16, &kForwardTf32D16},
                                                 {32, &kForwardTf32D32},
                                                 {64, &kForwardTf32D64},
                                                 {128, &kForwardTf32D128},
                                                 {256, &kForwardTf32D256}};
constexpr Entry<BackwardKernel> kBackwardTf32[] = {{16, &kBackwardTf32D16},
                                                   {32, &kBackwardTf32D32},
                                                   {64, &kBackwardTf32D64},
                                                   {128, &kBackwardTf32D128},
                                                   {256, &kBackwardTf32D256}};
constexpr Entry<BackwardKernel> kTwoPassFp32[] = {
    {64, &kTwoPassFp32D64}, {128, &kTwoPassFp32D128}, {256, &kTwoPassFp32D256}};
constexpr Entry<BackwardKernel> kTwoPassTf32[] = {
    {64, &kTwoPassTf32D64}, {128, &kTwoPassTf32D128}, {256, &kTwoPassTf32D256}};
constexpr Entry<BackwardKernel> kTwoPassBf16[] = {
    {64, &kTwoPassBf16D64}, {128, &kTwoPassBf16D128}, {256, &kTwoPassBf16D256}};
constexpr Entry<BackwardKernel> kTwoPassFp16[] = {
    {64, &kTwoPassFp16D64}, {128, &kTwoPassFp16D128}, {256, &kTwoPassFp16D256}};

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
  switch (dtype) {
    case DType::fp32:
      return smallest_that_fits(kForwardFp32, head_dim);
    case DType::tf32:
      return smallest_that_fits(kForwardTf32, head_dim);
    case DType::bf16:
      return smallest_that_fits(vector ? kForwardBf16 : kForwardBf16Elements, head_dim);
    default:
      WM_CHECK(dtype == DType::fp16, "these kernels take fp32, tf32, bf16 and fp16");
      return smallest_that_fits(vector ? kForwardFp16 : kForwardFp16Elements, head_dim);
  }
}

const BackwardKernel& backward_kernel(DType dtype, int head_dim, bool vector) {
  switch (dtype) {
    case DType::fp32:
      return smallest_that_fits(kBackwardFp32, head_dim);
    case DType::tf32:
      return smallest_that_fits(kBackwardTf32, head_dim);
    case DType::bf16:
      return smallest_that_fits(vector ? kBackwardBf16 : kBackwardBf16Elements, head_dim);
    default:
      WM_CHECK(dtype == DType::fp16, "these kernels take fp32, tf32, bf16 and fp16");
      return smallest_that_fits(vector ? kBackwardFp16 : kBackwardFp16Elements, head_dim);
  }
}

const BackwardKernel& two_pass_kernel(DType dtype, int head_dim) {
  switch (dtype) {
    case DType::fp32:
      return smallest_that_fits(kTwoPassFp32, head_dim);
    case DType::tf32:
      return smallest_that_fits(kTwoPassTf32, head_dim);
    case DType::bf16:
      return smallest_that_fits(kTwoPassBf16, head_dim);
    default:
      WM_CHECK(dtype == DType::fp16, "these kernels take fp32, tf32, bf16 and fp16");
      return smallest_that_fits(kTwoPassFp16, head_dim);
  }
}

}  // namespace warpmeter::attention::flash_sm80
