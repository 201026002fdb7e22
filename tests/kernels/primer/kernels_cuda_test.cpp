// The primer's kernels on a GPU: right for every size and type, on a stream of their own, and the same on every run.
#include <cmath>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "tests/kernels/primer/cases.hpp"

namespace warpmeter::primer {
namespace {

class EveryKernelCuda : public testing::TestWithParam<std::string_view> {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU: " << cuda_unavailable_reason();
    stream_ = std::make_unique<Stream>(Device::cuda());
    allocator_ = std::make_unique<CachingAllocator>(Device::cuda());
    context_ = {stream_->view(), allocator_.get()};
  }
  const Kernel& kernel_ = *find_kernel(GetParam());
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<CachingAllocator> allocator_;
  Context context_;
};

/// Compute-sanitizer runs this one: every path, at sizes that it takes in seconds.
TEST_P(EveryKernelCuda, IsRightForAllSizesAndTypes) {
  for (const Problem& problem : problems_of(kernel_, false)) {
    EXPECT_EQ(run_and_check(context_, kernel_, problem), "") << describe(kernel_, problem);
  }
}

TEST_P(EveryKernelCuda, IsRightForLargerSizes) {
  for (const Problem& problem : problems_of(kernel_, true)) {
    EXPECT_EQ(run_and_check(context_, kernel_, problem), "") << describe(kernel_, problem);
  }
}

TEST_P(EveryKernelCuda, GivesTheSameBitsOnEveryRun) {
  for (const Problem& problem : problems_of(kernel_, true)) {
    const auto first = result_bytes(context_, kernel_, problem);
    for (int repeat = 0; repeat < 2; ++repeat) {
      EXPECT_EQ(result_bytes(context_, kernel_, problem), first) << describe(kernel_, problem);
    }
  }
}

TEST_P(EveryKernelCuda, TakesManyBatchesAndMoreThan32BitsOfElements) {
  if (kernel_.has(Size::batch)) {
    Problem problem{.batch = 70000, .rows = 3, .cols = 5, .inner = 4, .kernel_size = 2};
    EXPECT_EQ(run_and_check(context_, kernel_, problem), "");
    problem.dtype = DType::bf16;
    problem.cols = 8;
    problem.inner = 8;
    EXPECT_EQ(run_and_check(context_, kernel_, problem), "");
    return;
  }
  if (kernel_.matrix_product || kernel_.name == "scalar_attention") GTEST_SKIP() << "it would take too long";
  const Problem problem{.dtype = DType::bf16, .rows = 66000, .cols = 66000};
  const std::size_t host_bytes = static_cast<std::size_t>(kernel_.bytes(problem));
  if (free_memory_bytes(Device::cuda()) < 4 * host_bytes / 3 || free_memory_bytes(Device::cpu()) < 2 * host_bytes) {
    GTEST_SKIP() << "no room for tensors of 8.7 GB";
  }
  if (kernel_.name != "add" && kernel_.name != "softmax_online" && kernel_.name != "weighted_sum_backward") {
    GTEST_SKIP() << "add, softmax_online and weighted_sum_backward stand for the others: they index alike";
  }
  EXPECT_EQ(run_and_check(context_, kernel_, problem), "");
}

/// y is the identity, so that z is the weights themselves, rounded once: a wrong one shows its place.
TEST(Int4MatmulCuda, GivesBackEveryWeightWhenMultipliedByTheIdentity) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU: " << cuda_unavailable_reason();
  const Stream stream(Device::cuda());
  CachingAllocator allocator(Device::cuda());
  const Context context{stream.view(), &allocator};
  const Kernel& kernel = *find_kernel("int4_matmul");
  for (const std::int64_t group_size : {64, 128, 192}) {
    for (const DType dtype : {DType::bf16, DType::fp16}) {
      const Problem problem{.dtype = dtype, .rows = 300, .cols = 1152, .inner = 1152, .group_size = group_size};
      const Operands operands = make_operands(context, kernel, problem, 7);
      std::vector<std::uint16_t> identity(static_cast<std::size_t>(problem.inner * problem.cols));
      for (std::int64_t k = 0; k < problem.inner; ++k) {
        identity[static_cast<std::size_t>(k * problem.cols + k)] = dtype == DType::bf16 ? 0x3f80 : 0x3c00;
      }
      copy_bytes(operands.in[3].data(), Device::cuda(), identity.data(), Device::cpu(), operands.in[3].bytes(),
                 context.stream);
      operands.poison(context.stream);
      run(kernel, problem, operands.arguments(), context.stream);
      const HostCopies in(operands.in, kernel.inputs(problem), context.stream);
      const HostCopies out(operands.out, kernel.outputs(problem), context.stream);
      const std::int64_t groups = problem.inner / group_size, group_words = (groups + 7) / 8;
      int wrong = 0;
      for (std::int64_t row = 0; row < problem.rows; ++row) {
        for (std::int64_t k = 0; k < problem.inner && wrong < 5; ++k) {
          const std::int64_t group = k / group_size;
          const int weight = in.tensors()[0].nibble(row * problem.inner + k);
          const int offset = in.tensors()[2].nibble(row * 8 * group_words + group);
          const double expected = in.tensors()[1][row * groups + group] * (weight - offset);
          const double result = out.tensors()[0][row * problem.cols + k];
          if (std::fabs(result - expected) <= unit_roundoff(dtype) * std::fabs(expected)) continue;
          ADD_FAILURE() << describe(kernel, problem) << ": w[" << row << "," << k << "] is " << result << ", should be "
                        << expected;
          ++wrong;
        }
      }
    }
  }
}

std::vector<std::string_view> names() {
  std::vector<std::string_view> all;
  for (const Kernel& kernel : kernels()) all.push_back(kernel.name);
  return all;
}
INSTANTIATE_TEST_SUITE_P(Primer, EveryKernelCuda, testing::ValuesIn(names()),
                         [](const auto& instance) { return std::string(instance.param); });

}  // namespace
}  // namespace warpmeter::primer
