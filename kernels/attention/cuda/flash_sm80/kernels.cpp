#include "kernels/attention/cuda/flash_sm80/kernels.hpp"

#include <span>
#include <string>

#include "kernels/attention/cuda/flash_sm80/check_cuda.hpp"
#include "kernels/attention/cuda/flash_sm80/instantiations.hpp"
#include "kernels/runtime/check.hpp"
#include "kernels/runtime/device.hpp"

namespace warpmeter::attention::flash_sm80 {

namespace {

template <class Kernel>
struct Entry {
  int head_dim;
  const Kernel* kernel;
};

// By ascending head dim, and for one head dim by descending shared memory.
constexpr Entry<ForwardKernel> kForwardBf16[] = {{32, &kForwardBf16D32},   {64, &kForwardBf16D64},
                                                 {96, &kForwardBf16D96},   {128, &kForwardBf16D128},
                                                 {256, &kForwardBf16D256}, {256, &kForwardBf16D256Shared99k}};
constexpr Entry<ForwardKernel> kForwardFp16[] = {{32, &kForwardFp16D32},   {64, &kForwardFp16D64},
                                                 {96, &kForwardFp16D96},   {128, &kForwardFp16D128},
                                                 {256, &kForwardFp16D256}, {256, &kForwardFp16D256Shared99k}};
constexpr Entry<ForwardKernel> kForwardBf16Elements[] = {
    {32, &kForwardBf16D32Elements},   {64, &kForwardBf16D64Elements},   {96, &kForwardBf16D96Elements},
    {128, &kForwardBf16D128Elements}, {256, &kForwardBf16D256Elements}, {256, &kForwardBf16D256ElementsShared99k}};
constexpr Entry<ForwardKernel> kForwardFp16Elements[] = {
    {32, &kForwardFp16D32Elements},   {64, &kForwardFp16D64Elements},   {96, &kForwardFp16D96Elements},
    {128, &kForwardFp16D128Elements}, {256, &kForwardFp16D256Elements}, {256, &kForwardFp16D256ElementsShared99k}};
constexpr Entry<BackwardKernel> kBackwardBf16[] = {{32, &kBackwardBf16D32},
                                                   {64, &kBackwardBf16D64},
                                                   {64, &kBackwardBf16D64Shared99k},
                                                   {96, &kBackwardBf16D96},
                                                   {96, &kBackwardBf16D96Shared99k},
                                                   {128, &kBackwardBf16D128},
                                                   {128, &kBackwardBf16D128Shared163k},
                                                   {128, &kBackwardBf16D128Shared99k},
                                                   {256, &kBackwardBf16D256},
                                                   {256, &kBackwardBf16D256Shared99k}};
constexpr Entry<BackwardKernel> kBackwardFp16[] = {{32, &kBackwardFp16D32},
                                                   {64, &kBackwardFp16D64},
                                                   {64, &kBackwardFp16D64Shared99k},
                                                   {96, &kBackwardFp16D96},
                                                   {96, &kBackwardFp16D96Shared99k},
                                                   {128, &kBackwardFp16D128},
                                                   {128, &kBackwardFp16D128Shared163k},
                                                   {128, &kBackwardFp16D128Shared99k},
                                                   {256, &kBackwardFp16D256},
                                                   {256, &kBackwardFp16D256Shared99k}};
constexpr Entry<BackwardKernel> kBackwardBf16Elements[] = {{32, &kBackwardBf16D32Elements},
                                                           {64, &kBackwardBf16D64Elements},
                                                           {64, &kBackwardBf16D64ElementsShared99k},
                                                           {96, &kBackwardBf16D96Elements},
                                                           {96, &kBackwardBf16D96ElementsShared99k},
                                                           {128, &kBackwardBf16D128Elements},
                                                           {128, &kBackwardBf16D128ElementsShared163k},
                                                           {128, &kBackwardBf16D128ElementsShared99k},
                                                           {256, &kBackwardBf16D256Elements},
                                                           {256, &kBackwardBf16D256ElementsShared99k}};
constexpr Entry<BackwardKernel> kBackwardFp16Elements[] = {{32, &kBackwardFp16D32Elements},
                                                           {64, &kBackwardFp16D64Elements},
                                                           {64, &kBackwardFp16D64ElementsShared99k},
                                                           {96, &kBackwardFp16D96Elements},
                                                           {96, &kBackwardFp16D96ElementsShared99k},
                                                           {128, &kBackwardFp16D128Elements},
                                                           {128, &kBackwardFp16D128ElementsShared163k},
                                                           {128, &kBackwardFp16D128ElementsShared99k},
                                                           {256, &kBackwardFp16D256Elements},
                                                           {256, &kBackwardFp16D256ElementsShared99k}};
constexpr Entry<ForwardKernel> kForwardFp32[] = {{16, &kForwardFp32D16},
                                                 {32, &kForwardFp32D32},
                                                 {64, &kForwardFp32D64},
                                                 {128, &kForwardFp32D128},
                                                 {128, &kForwardFp32D128Shared99k},
                                                 {256, &kForwardFp32D256},
                                                 {256, &kForwardFp32D256Shared99k}};
constexpr Entry<BackwardKernel> kBackwardFp32[] = {{16, &kBackwardFp32D16},
                                                   {32, &kBackwardFp32D32},
                                                   {64, &kBackwardFp32D64},
                                                   {128, &kBackwardFp32D128},
                                                   {128, &kBackwardFp32D128Shared163k},
                                                   {128, &kBackwardFp32D128Shared99k},
                                                   {256, &kBackwardFp32D256},
                                                   {256, &kBackwardFp32D256Shared99k}};
constexpr Entry<ForwardKernel> kForwardTf32[] = {{16, &kForwardTf32D16},
                                                 {32, &kForwardTf32D32},
                                                 {64, &kForwardTf32D64},
                                                 {128, &kForwardTf32D128},
                                                 {128, &kForwardTf32D128Shared99k},
                                                 {256, &kForwardTf32D256},
                                                 {256, &kForwardTf32D256Shared99k}};
constexpr Entry<BackwardKernel> kBackwardTf32[] = {{16, &kBackwardTf32D16},
                                                   {32, &kBackwardTf32D32},
                                                   {64, &kBackwardTf32D64},
                                                   {128, &kBackwardTf32D128},
                                                   {128, &kBackwardTf32D128Shared163k},
                                                   {128, &kBackwardTf32D128Shared99k},
                                                   {256, &kBackwardTf32D256},
                                                   {256, &kBackwardTf32D256Shared99k}};
constexpr Entry<BackwardKernel> kTwoPassFp32[] = {{64, &kTwoPassFp32D64},
                                                  {128, &kTwoPassFp32D128},
                                                  {128, &kTwoPassFp32D128Shared99k},
                                                  {256, &kTwoPassFp32D256},
                                                  {256, &kTwoPassFp32D256Shared99k}};
constexpr Entry<BackwardKernel> kTwoPassTf32[] = {{64, &kTwoPassTf32D64},
                                                  {128, &kTwoPassTf32D128},
                                                  {128, &kTwoPassTf32D128Shared99k},
                                                  {256, &kTwoPassTf32D256},
                                                  {256, &kTwoPassTf32D256Shared99k}};
constexpr Entry<BackwardKernel> kTwoPassBf16[] = {{64, &kTwoPassBf16D64},
                                                  {128, &kTwoPassBf16D128},
                                                  {128, &kTwoPassBf16D128Shared99k},
                                                  {256, &kTwoPassBf16D256},
                                                  {256, &kTwoPassBf16D256Shared99k}};
constexpr Entry<BackwardKernel> kTwoPassFp16[] = {{64, &kTwoPassFp16D64},
                                                  {128, &kTwoPassFp16D128},
                                                  {128, &kTwoPassFp16D128Shared99k},
                                                  {256, &kTwoPassFp16D256},
                                                  {256, &kTwoPassFp16D256Shared99k}};

/// A type's kernels; `_elements`: for operands that are not aligned, where those are others.
struct Tables {
  std::span<const Entry<ForwardKernel>> forward, forward_elements;
  std::span<const Entry<BackwardKernel>> backward, backward_elements, two_pass;
};
constexpr Tables kFp32 = {kForwardFp32, kForwardFp32, kBackwardFp32, kBackwardFp32, kTwoPassFp32};
constexpr Tables kTf32 = {kForwardTf32, kForwardTf32, kBackwardTf32, kBackwardTf32, kTwoPassTf32};
constexpr Tables kBf16 = {kForwardBf16, kForwardBf16Elements, kBackwardBf16, kBackwardBf16Elements, kTwoPassBf16};
constexpr Tables kFp16 = {kForwardFp16, kForwardFp16Elements, kBackwardFp16, kBackwardFp16Elements, kTwoPassFp16};

const Tables& tables_of(DType dtype) {
  switch (dtype) {
    case DType::fp32:
      return kFp32;
    case DType::tf32:
      return kTf32;
    case DType::bf16:
      return kBf16;
    default:
      WM_CHECK(dtype == DType::fp16, "these kernels take fp32, tf32, bf16 and fp16");
      return kFp16;
  }
}

template <class Kernel>
const Kernel& smallest_that_fits(std::span<const Entry<Kernel>> table, int head_dim, std::size_t shared_limit) {
  for (const Entry<Kernel>& entry : table) {
    if (head_dim <= entry.head_dim && entry.kernel->shared_bytes <= shared_limit) return *entry.kernel;
  }
  WM_CHECK(false, "no kernel for head dim " + std::to_string(head_dim) + " in " + std::to_string(shared_limit) +
                      " bytes of shared memory");
  return *table[0].kernel;
}

}  // namespace

std::size_t shared_memory_limit() {
  if (cuda_device_count() == 0) return kSharedBytesSm90;
  int device = 0, bytes = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
             "cudaDeviceGetAttribute(MaxSharedMemoryPerBlockOptin)");
  return static_cast<std::size_t>(bytes);
}

const ForwardKernel& forward_kernel(DType dtype, int head_dim, bool vector, std::size_t shared_limit) {
  const Tables& tables = tables_of(dtype);
  return smallest_that_fits(vector ? tables.forward : tables.forward_elements, head_dim, shared_limit);
}

const BackwardKernel& backward_kernel(DType dtype, int head_dim, bool vector, std::size_t shared_limit) {
  const Tables& tables = tables_of(dtype);
  return smallest_that_fits(vector ? tables.backward : tables.backward_elements, head_dim, shared_limit);
}

const BackwardKernel& two_pass_kernel(DType dtype, int head_dim, std::size_t shared_limit) {
  return smallest_that_fits(tables_of(dtype).two_pass, head_dim, shared_limit);
}

}  // namespace warpmeter::attention::flash_sm80
