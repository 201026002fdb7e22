#include <gtest/gtest.h>

#include "kernels/attention/flash_cuda.hpp"

// What flash on CUDA says about itself without a device.
namespace warpmeter {
namespace {

using namespace attention;  // NOLINT

AttentionProblem problem_of(DType dtype, std::int64_t head_dim) {
  AttentionProblem p;
  p.head_dim = head_dim;
  p.dtype = dtype;
  return p;
}

TEST(FlashCuda, NamesTheKernelThatFits) {
  const Implementation& flash = flash_cuda();
  EXPECT_EQ(flash.kernel(problem_of(DType::fp32, 16), Pass::forward), "flash_sm80_d16_fp32");
  EXPECT_EQ(flash.kernel(problem_of(DType::fp32, 17), Pass::backward), "flash_sm80_d32_fp32");
  EXPECT_EQ(flash.kernel(problem_of(DType::tf32, 65), Pass::forward), "flash_sm80_d128_tf32");
  EXPECT_EQ(flash.kernel(problem_of(DType::bf16, 96), Pass::forward), "flash_sm80_d96_bf16");
  EXPECT_EQ(flash.kernel(problem_of(DType::fp16, 63), Pass::backward), "flash_sm80_d64_fp16_elements");
  EXPECT_EQ(flash_two_pass_cuda().kernel(problem_of(DType::bf16, 63), Pass::backward), "flash_two_pass_d64_bf16");
}

TEST(FlashCuda, SaysWhichCeilingHolds) {
  const auto path = [](const Implementation& flash, DType dtype, Pass pass) {
    return flash.compute_path(problem_of(dtype, 64), pass);
  };
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    EXPECT_EQ(path(flash_cuda(), DType::fp32, pass), ComputePath::tf32x3);
    EXPECT_EQ(path(flash_cuda(), DType::tf32, pass), ComputePath::tf32);
    EXPECT_EQ(path(flash_cuda(), DType::bf16, pass), ComputePath::half);
  }
  EXPECT_EQ(path(flash_two_pass_cuda(), DType::bf16, Pass::forward), ComputePath::half);
  EXPECT_EQ(path(flash_two_pass_cuda(), DType::bf16, Pass::backward), ComputePath::tf32);
}

/// Three floats a query row and a float more that is kept: nothing grows with seq_len x kv_len or with head_dim.
TEST(FlashCuda, Fp32TakesFourFloatsAQueryRow) {
  AttentionProblem p = problem_of(DType::fp32, 128);
  p.batch = 8;
  p.seq_len = p.kv_len = 16384;
  const std::size_t a_float_a_row = std::size_t{8} * 16384 * 4;
  for (const Implementation* flash : {&flash_cuda(), &flash_two_pass_cuda()}) {
    EXPECT_EQ(flash->memory_plan(p, false).forward_peak, 0U);
    EXPECT_EQ(flash->memory_plan(p, true).saved, a_float_a_row);
    EXPECT_EQ(flash->memory_plan(p, true).backward_peak, 4 * a_float_a_row);
  }
}

}  // namespace
}  // namespace warpmeter
