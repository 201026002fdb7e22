#include "tests/kernels/attention/conformance.hpp"

namespace warpmeter {
namespace {

WM_ATTENTION_CONFORMANCE(NaiveCuda, DeviceKind::cuda, "naive");

/// Score matrices of more than 2^31 elements (4.5 GiB each in bf16), rows checked by sample.
TEST_F(NaiveCudaConformance, MoreElementsThan32Bits) {
  conformance::Case c;
  c.problem.num_heads = c.problem.num_kv_heads = 36;
  c.problem.seq_len = c.problem.kv_len = 8192;
  c.problem.head_dim = 16;
  c.problem.dtype = DType::bf16;
  c.work_budget = 4e8;
  const std::size_t needed = subject.implementation().memory_plan(c.problem, true).forward_peak;
  const std::size_t free = free_memory_bytes(subject.context().device());
  if (free < needed + (std::size_t{1} << 30)) GTEST_SKIP() << "needs " << needed << " bytes of device memory";
  for (const bool causal : {true, false}) {
    c.problem.causal = causal;
    EXPECT_TRUE(conformance::run(subject, c));
  }
}

/// More matrices than a grid's y or z dimension counts, and than one call of cuBLAS takes.
TEST_F(NaiveCudaConformance, MoreHeadsThan16Bits) {
  for (const auto& [batch, heads, kv_heads] : {std::tuple{70'000, 2, 2}, {2, 70'000, 70'000}, {35'000, 4, 2}}) {
    conformance::Case c;
    c.problem.batch = batch;
    c.problem.num_heads = heads;
    c.problem.num_kv_heads = kv_heads;
    c.problem.seq_len = 5;
    c.problem.kv_len = 7;
    c.problem.head_dim = 8;
    c.work_budget = 1e8;
    EXPECT_TRUE(conformance::run(subject, c));
  }
}

}  // namespace
}  // namespace warpmeter
