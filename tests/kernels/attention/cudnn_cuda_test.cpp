#include "tests/kernels/attention/conformance.hpp"

namespace warpmeter {
namespace {

namespace conformance = attention::conformance;

/// The suite's parts that a vendor's closed library can be held to: not what it does with little memory.
class CudnnConformance : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device: " << cuda_unavailable_reason();
    subject_ = std::make_unique<conformance::Subject>(DeviceKind::cuda, "cudnn");
    attention::AttentionProblem usual;
    usual.seq_len = usual.kv_len = 64;
    usual.dtype = DType::bf16;
    for (const attention::Pass pass : {attention::Pass::forward, attention::Pass::backward}) {
      if (const auto reason = subject_->implementation().unsupported(usual, pass)) GTEST_SKIP() << *reason;
    }
  }
  std::unique_ptr<conformance::Subject> subject_;
};

TEST_F(CudnnConformance, Lengths) {
  conformance::run_all(*subject_, conformance::length_cases(conformance::Extent::thinned));
}
TEST_F(CudnnConformance, HeadDims) {
  conformance::run_all(*subject_, conformance::head_dim_cases());
}
TEST_F(CudnnConformance, GroupedHeads) {
  conformance::run_all(*subject_, conformance::group_cases());
}
TEST_F(CudnnConformance, Layouts) {
  conformance::run_all(*subject_, conformance::layout_cases());
}
TEST_F(CudnnConformance, ExtremeValues) {
  conformance::run_all(*subject_, conformance::value_cases());
}
TEST_F(CudnnConformance, SameBits) {
  conformance::check_same_bits(*subject_);
}
TEST_F(CudnnConformance, MemoryPlan) {
  conformance::check_memory_plan(*subject_);
}
TEST_F(CudnnConformance, Refusals) {
  conformance::check_refusals(*subject_);
}
TEST_F(CudnnConformance, RefusesWhatItsMaskCannotSay) {
  attention::AttentionProblem p;
  p.seq_len = 100;
  p.kv_len = 64;
  p.dtype = DType::bf16;
  EXPECT_EQ(subject_->implementation().unsupported(p, attention::Pass::forward),
            "cuDNN's attention has no causal mask with more queries than keys");
  p.causal = false;
  p.head_dim = 36;
  EXPECT_EQ(subject_->implementation().unsupported(p, attention::Pass::forward),
            "cuDNN's attention has head dims in multiples of 8 up to 256");
}

}  // namespace
}  // namespace warpmeter
