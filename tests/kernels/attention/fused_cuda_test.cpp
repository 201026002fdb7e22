#include "kernels/attention/detail/scores_cuda.hpp"
#include "tests/kernels/attention/conformance.hpp"
#include "tests/kernels/attention/operands.hpp"

namespace warpmeter {
namespace {

WM_ATTENTION_CONFORMANCE(FusedCuda, DeviceKind::cuda, "fused");

/// Problems large enough to be split into panels, with lengths beside panels' and vectors' borders.
std::vector<conformance::Case> panel_cases() {
  struct Shape {
    std::int64_t batch, heads, kv_heads, seq_len, kv_len, head_dim;
    DType dtype;
    conformance::Layout layout;
  };
  using conformance::Layout;
  const Shape shapes[] = {
      {48, 4, 4, 1030, 1030, 16, DType::fp32, Layout::bhsd},  {48, 4, 4, 1030, 1501, 16, DType::fp32, Layout::padded},
      {48, 4, 4, 1501, 1030, 16, DType::fp32, Layout::bshd},  {48, 4, 4, 1700, 1024, 8, DType::tf32, Layout::bhsd},
      {32, 8, 8, 1024, 1100, 16, DType::bf16, Layout::bhsd},  {64, 8, 2, 1100, 1100, 16, DType::bf16, Layout::bhsd},
      {64, 8, 2, 1027, 1300, 16, DType::fp16, Layout::bshd},  {64, 8, 2, 1300, 1027, 8, DType::fp16, Layout::bhsd},
      {64, 6, 3, 1025, 1025, 16, DType::fp32, Layout::padded}};
  std::vector<conformance::Case> cases;
  for (const Shape& shape : shapes) {
    conformance::Case& c = cases.emplace_back();
    c.problem.batch = shape.batch;
    c.problem.num_heads = shape.heads;
    c.problem.num_kv_heads = shape.kv_heads;
    c.problem.seq_len = shape.seq_len;
    c.problem.kv_len = shape.kv_len;
    c.problem.head_dim = shape.head_dim;
    c.problem.dtype = shape.dtype;
    c.layout = shape.layout;
    c.work_budget = 2e8;
  }
  return cases;
}

TEST_F(FusedCudaConformance, Panels) {
  for (const conformance::Case& c : panel_cases()) {
    ASSERT_GT(attention::detail::score_panels(c.problem).panels(), 1) << conformance::describe(c);
    ASSERT_GT(attention::detail::inner_panels(c.problem).panels(), 1) << conformance::describe(c);
    EXPECT_TRUE(conformance::run(subject, c));
  }
}

/// The plan holds where panels cut grouped heads too, whose 16-bit gradients are added up in fp32. The allocator hands
/// large blocks out whole when up to 1 MiB would remain of them: that much may come on top for each.
TEST_F(FusedCudaConformance, MemoryPlanOfPanels) {
  for (const conformance::Case& c : panel_cases()) {
    if (c.layout != conformance::Layout::bhsd) continue;
    SCOPED_TRACE(conformance::describe(c));
    conformance::Operands operands(subject, c);
    CachingAllocator& allocator = subject.allocator();
    const std::size_t before = allocator.stats().current.allocated;
    const attention::MemoryPlan plan = subject.implementation().memory_plan(c.problem, true);
    const auto expect_near = [](std::size_t got, std::size_t planned, std::size_t blocks) {
      EXPECT_GE(got, planned);
      EXPECT_LE(got, planned + (blocks << 20));
    };
    allocator.reset_peak();
    const std::unique_ptr<attention::Saved> saved = operands.forward(true);
    expect_near(allocator.stats().peak.allocated - before, plan.forward_peak, 2);
    expect_near(allocator.stats().current.allocated - before, plan.saved, 1);
    allocator.reset_peak();
    operands.backward(saved.get());
    expect_near(allocator.stats().peak.allocated - before, plan.backward_peak, 4);
  }
}

}  // namespace
}  // namespace warpmeter
