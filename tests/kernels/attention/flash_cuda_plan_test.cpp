#include <algorithm>

#include <gtest/gtest.h>

#include "kernels/attention/cuda/flash_sm80/kernels.hpp"
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
  const Implementation& flash = flash_sm80_cuda();  // flash's own forward depends on the device
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

constexpr DType kTypes[] = {DType::fp32, DType::tf32, DType::bf16, DType::fp16};

/// On every device from sm_80 on a launch of any kernel is within what a block may have.
TEST(FlashCuda, TilesFitEveryDevicesSharedMemory) {
  for (const std::size_t limit :
       {flash_sm80::kSharedBytesLeast, flash_sm80::kSharedBytesSm80, flash_sm80::kSharedBytesSm90}) {
    for (const DType dtype : kTypes) {
      for (int head_dim = 1; head_dim <= 256; ++head_dim) {
        for (const bool vector : {true, false}) {
          const auto& forward = flash_sm80::forward_kernel(dtype, head_dim, vector, limit);
          const auto& backward = flash_sm80::backward_kernel(dtype, head_dim, vector, limit);
          const auto& two_pass = flash_sm80::two_pass_kernel(dtype, head_dim, limit);
          EXPECT_LE(forward.shared_bytes, limit) << forward.name;
          EXPECT_LE(backward.shared_bytes, limit) << backward.name;
          EXPECT_LE(two_pass.shared_bytes, limit) << two_pass.name;
          EXPECT_GT(std::min({forward.shared_bytes, backward.shared_bytes, two_pass.shared_bytes}), 0U);
        }
      }
    }
  }
}

TEST(FlashCuda, SmallerSharedMemoryTakesOtherTilesOnlyWhereItMust) {
  using flash_sm80::backward_kernel;
  using flash_sm80::forward_kernel;
  using flash_sm80::kSharedBytesLeast;
  using flash_sm80::kSharedBytesSm80;
  using flash_sm80::kSharedBytesSm90;
  EXPECT_STREQ(forward_kernel(DType::bf16, 64, true, kSharedBytesLeast).name, "flash_sm80_d64_bf16");
  EXPECT_STREQ(forward_kernel(DType::bf16, 128, true, kSharedBytesSm80).name, "flash_sm80_d128_bf16");
  EXPECT_STREQ(forward_kernel(DType::bf16, 100, true, kSharedBytesLeast).name, "flash_sm80_d128_bf16");
  EXPECT_STREQ(forward_kernel(DType::fp16, 200, false, kSharedBytesSm80).name, "flash_sm80_d256_fp16_elements_99k");
  EXPECT_STREQ(backward_kernel(DType::bf16, 128, true, kSharedBytesSm90).name, "flash_sm80_d128_bf16");
  EXPECT_STREQ(backward_kernel(DType::bf16, 128, true, kSharedBytesSm80).name, "flash_sm80_d128_bf16_163k");
  EXPECT_STREQ(backward_kernel(DType::bf16, 128, true, kSharedBytesLeast).name, "flash_sm80_d128_bf16_99k");
  EXPECT_STREQ(backward_kernel(DType::fp32, 64, true, kSharedBytesLeast).name, "flash_sm80_d64_fp32");
  EXPECT_STREQ(backward_kernel(DType::fp32, 80, true, kSharedBytesSm80).name, "flash_sm80_d128_fp32_163k");
  EXPECT_STREQ(backward_kernel(DType::tf32, 256, true, kSharedBytesSm80).name, "flash_sm80_d256_tf32_99k");
  EXPECT_STREQ(flash_sm80::two_pass_kernel(DType::fp16, 96, kSharedBytesLeast).name, "flash_two_pass_d128_fp16_99k");
}

/// The workspace is planned before the operands' alignment is known.
TEST(FlashCuda, KernelsForUnalignedRowsHaveTheSameWorkspace) {
  flash_sm80::Shape shape;
  shape.batch = 2;
  shape.num_heads = shape.num_kv_heads = 3;
  shape.seq_len = shape.kv_len = 333;
  for (const std::size_t limit :
       {flash_sm80::kSharedBytesLeast, flash_sm80::kSharedBytesSm80, flash_sm80::kSharedBytesSm90}) {
    for (const DType dtype : kTypes) {
      for (const int head_dim : {8, 40, 64, 80, 96, 128, 192, 256}) {
        shape.head_dim = head_dim;
        const auto aligned = flash_sm80::backward_kernel(dtype, head_dim, true, limit).workspace(shape, true);
        const auto other = flash_sm80::backward_kernel(dtype, head_dim, false, limit).workspace(shape, true);
        EXPECT_EQ(aligned.row_stats, other.row_stats) << head_dim;
        EXPECT_EQ(aligned.dq_accumulator, other.dq_accumulator) << head_dim;
        EXPECT_EQ(aligned.turns, other.turns) << head_dim;
      }
    }
  }
}

}  // namespace
}  // namespace warpmeter
