
#include <string>
#include <vector>

#include "tests/kernels/attention/conformance.hpp"

namespace warpmeter {
namespace {

using namespace attention;               // NOLINT
using namespace attention::conformance;  // NOLINT

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
/// Every compiled head dim and the first one beyond it, in each type, aligned and not.
TEST_P(FlashCudaConformance, HeadDimsOfEveryKernel) {
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
  run_all(subject, cases);
}

INSTANTIATE_TEST_SUITE_P(All, FlashCudaConformance, testing::Values("flash", "flash_two_pass"),
                         [](const auto& instance) { return std::string(instance.param); });

}  // namespace
}  // namespace warpmeter
