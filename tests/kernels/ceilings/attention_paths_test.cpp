#include <string>

#include <gtest/gtest.h>

#include "kernels/attention/detail/flash_dispatch.hpp"
#include "kernels/attention/flash.hpp"
#include "kernels/ceilings/matmul.hpp"

// The attention kernels and the ceilings decide apart what multiplies bf16. They must come to the same, or shares would
// be of another arithmetic's ceiling. Run with several WARPMETER_CPU_ISA, since both decide once a process.
namespace warpmeter {
namespace {

using attention::flash_detail::find_kernels;
using attention::flash_detail::Kernels;

attention::AttentionProblem problem_of(DType dtype) {
  attention::AttentionProblem problem;
  problem.dtype = dtype;
  return problem;
}

bool is_native_bf16(const attention::Implementation& flash) {
  return flash.kernel(problem_of(DType::bf16), attention::Pass::forward).ends_with("_bf16");
}

TEST(AttentionPaths, FlashIsHalfExactlyWhereItsKernelMultipliesBf16) {
  for (const auto* flash : {&attention::flash_cpu(), &attention::flash_two_pass_cpu()}) {
    for (const auto pass : {attention::Pass::forward, attention::Pass::backward}) {
      EXPECT_EQ(flash->compute_path(problem_of(DType::bf16), pass),
                is_native_bf16(*flash) ? ComputePath::half : ComputePath::fp32);
      EXPECT_EQ(flash->compute_path(problem_of(DType::fp16), pass), ComputePath::fp32);
      EXPECT_EQ(flash->compute_path(problem_of(DType::fp32), pass), ComputePath::fp32);
    }
  }
}

TEST(AttentionPaths, TheCeilingsHaveThatPathToo) {
  EXPECT_EQ(ceilings::measured_path(ComputePath::half, Device::cpu()),
            is_native_bf16(attention::flash_cpu()) ? ComputePath::half : ComputePath::fp32);
  if (!is_native_bf16(attention::flash_cpu())) return;
  // And by the same instructions: "flash_cpu_avx512_bf16" and "operands in cache, avx512_bf16".
  CachingAllocator allocator(Device::cpu());
  const auto work = ceilings::make_cached_matmul({{Device::cpu(), nullptr}, &allocator}, ComputePath::half);
  const std::string kernel = attention::flash_cpu().kernel(problem_of(DType::bf16), attention::Pass::forward);
  const std::string isa = kernel.substr(std::string("flash_cpu_").size());
  EXPECT_EQ(work->variant_name(0), "operands in cache, " + isa);
}

TEST(AttentionPaths, EveryLevelsKernels) {
  const auto path_of = [](attention::flash_detail::ChooseKernels choose) {
    return attention::flash_detail::make_flash_cpu(false, choose)
        ->compute_path(problem_of(DType::bf16), attention::Pass::forward);
  };
  EXPECT_EQ(path_of([](DType) -> const Kernels& { return *find_kernels("generic"); }), ComputePath::fp32);
  if (find_kernels("avx512_bf16") == nullptr) GTEST_SKIP() << "this machine does not multiply bf16";
  EXPECT_EQ(path_of([](DType dtype) -> const Kernels& {
              return *find_kernels(dtype == DType::bf16 ? "avx512_bf16" : "avx512");
            }),
            ComputePath::half);
}

}  // namespace
}  // namespace warpmeter
