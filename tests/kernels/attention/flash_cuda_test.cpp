
#include "kernels/attention/flash_cuda.hpp"

#include <memory>
#include <string>
#include <vector>

#include "kernels/attention/cuda/flash_sm80/kernels.hpp"
#include "kernels/runtime/tensor.hpp"
#include "tests/kernels/attention/conformance.hpp"

namespace warpmeter {
namespace {

using namespace attention;               // NOLINT
using namespace attention::conformance;  // NOLINT

/// Every compiled head dim and the first one beyond it, in each type, aligned and not.
std::vector<Case> cases_of_every_kernel() {
  std::vector<Case> cases;
  for (const std::int64_t head_dim : {8, 15, 24, 32, 33, 95, 100, 104, 129, 200, 255, 256}) {
    for (const DType dtype : {DType::fp32, DType::tf32, DType::bf16, DType::fp16}) {
      for (const bool causal : {true, false}) {
        Case c;
        c.problem.num_heads = 2;
        c.problem.seq_len = 133;
        c.problem.kv_len = 201;
        c.problem.head_dim = head_dim;
        c.problem.dtype = dtype;
        c.problem.causal = causal;
        c.problem.deterministic = causal;
        c.layout = causal ? Layout::padded : Layout::bhsd;
        cases.push_back(c);
      }
    }
  }
  return cases;
}

/// The suite's parts that a GPU has: a program in which one test skips counts as skipped.
class FlashCudaConformance : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!subject.missing().empty()) GTEST_SKIP() << subject.missing();
  }
  const Subject subject{DeviceKind::cuda, GetParam()};
};

TEST_P(FlashCudaConformance, Lengths) {
  run_all(subject, length_cases(Extent::thinned));
}
TEST_P(FlashCudaConformance, HeadDims) {
  run_all(subject, head_dim_cases());
}
TEST_P(FlashCudaConformance, GroupedHeads) {
  run_all(subject, group_cases());
}
TEST_P(FlashCudaConformance, Layouts) {
  run_all(subject, layout_cases());
}
TEST_P(FlashCudaConformance, ExtremeValues) {
  run_all(subject, value_cases());
}
TEST_P(FlashCudaConformance, UnseeingQueries) {
  check_unseeing_queries(subject);
}
TEST_P(FlashCudaConformance, NanShows) {
  check_nan_shows(subject);
}
TEST_P(FlashCudaConformance, SameBits) {
  check_same_bits(subject);
}
TEST_P(FlashCudaConformance, MemoryPlan) {
  check_memory_plan(subject);
}
TEST_P(FlashCudaConformance, OutOfMemory) {
  check_out_of_memory(subject);
}
TEST_P(FlashCudaConformance, Refusals) {
  check_refusals(subject);
}

TEST_P(FlashCudaConformance, HeadDimsOfEveryKernel) {
  run_all(subject, cases_of_every_kernel());
}

/// A problem whose kept and working memory is larger than what any segment of its operands has left.
TEST_P(FlashCudaConformance, OutOfMemoryInEachPass) {
  AttentionProblem p;
  p.batch = 64;
  p.num_heads = p.num_kv_heads = 16;
  p.seq_len = 4096;
  p.kv_len = 8;
  p.head_dim = 4;
  p.causal = false;
  const Context context = subject.context();
  CachingAllocator& allocator = subject.allocator();
  const auto query = [&] { return Tensor(context, {p.batch, p.num_heads, p.seq_len, p.head_dim}, p.dtype); };
  const auto key = [&] { return Tensor(context, {p.batch, p.num_kv_heads, p.kv_len, p.head_dim}, p.dtype); };
  const Tensor q = query(), k = key(), v = key(), o = query(), d_o = query(), dq = query(), dk = key(), dv = key();
  const Tensor lse(context, {p.batch, p.num_heads, p.seq_len}, DType::fp32);
  for (const Tensor* tensor : {&q, &k, &v, &d_o}) tensor->fill_bytes(0, context.stream);
  const auto forward = [&] {
    return subject.implementation().forward(context, p,
                                            {as_const(operand_bhsd(q)), as_const(operand_bhsd(k)),
                                             as_const(operand_bhsd(v)), operand_bhsd(o), lse.data_as<float>()},
                                            true);
  };
  const auto backward = [&](const Saved* saved) {
    subject.implementation().backward(
        context, p,
        {as_const(operand_bhsd(q)), as_const(operand_bhsd(k)), as_const(operand_bhsd(v)), as_const(operand_bhsd(o)),
         as_const(operand_bhsd(d_o)), lse.data_as<float>(), operand_bhsd(dq), operand_bhsd(dk), operand_bhsd(dv)},
        saved);
  };
  const auto allow_no_more = [&] {
    allocator.empty_cache();
    allocator.set_memory_limit(allocator.stats().current.reserved);
  };
  const MemoryPlan plan = subject.implementation().memory_plan(p, true);
  const std::size_t held = allocator.stats().current.allocated;
  allow_no_more();
  EXPECT_THROW(static_cast<void>(forward()), OutOfMemory);
  EXPECT_EQ(allocator.stats().current.allocated, held);
  allocator.set_memory_limit(0);
  const std::unique_ptr<Saved> saved = forward();
  allow_no_more();
  EXPECT_THROW(backward(saved.get()), OutOfMemory);
  EXPECT_EQ(allocator.stats().current.allocated, held + plan.saved);
  allocator.set_memory_limit(0);
  backward(saved.get());
  EXPECT_EQ(allocator.stats().current.allocated, held + plan.saved);
}

/// The tiles for devices with less shared memory, on this one.
class FlashCudaSharedMemory : public testing::TestWithParam<std::size_t> {};

TEST_P(FlashCudaSharedMemory, Conforms) {
  for (const bool two_pass : {false, true}) {
    const auto implementation = make_flash_sm80_cuda(two_pass, GetParam());
    const Subject subject(*implementation);
    if (!subject.missing().empty()) GTEST_SKIP() << subject.missing();
    run_all(subject, head_dim_cases());
    run_all(subject, value_cases());
    run_all(subject, cases_of_every_kernel());
    check_unseeing_queries(subject);
    check_nan_shows(subject);
    check_same_bits(subject);
    check_memory_plan(subject);
  }
}

INSTANTIATE_TEST_SUITE_P(All, FlashCudaSharedMemory,
                         testing::Values(flash_sm80::kSharedBytesLeast, flash_sm80::kSharedBytesSm80),
                         [](const auto& instance) { return std::to_string(instance.param / 1024) + "k"; });

INSTANTIATE_TEST_SUITE_P(All, FlashCudaConformance, testing::Values("flash", "flash_sm80", "flash_two_pass"),
                         [](const auto& instance) { return std::string(instance.param); });

}  // namespace
}  // namespace warpmeter
