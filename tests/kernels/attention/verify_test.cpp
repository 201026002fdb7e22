#include "kernels/attention/verify.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/attention/detail/row_ops.hpp"
#include "kernels/attention/registry.hpp"
#include "kernels/runtime/check.hpp"
#include "kernels/runtime/random.hpp"

namespace warpmeter::attention {
namespace {

/// Half a unit in the last place at 1.
double unit(DType dtype) {
  return dtype == DType::bf16 ? 0x1p-8 : dtype == DType::fp16 ? 0x1p-11 : 0x1p-24;
}

/// A problem with right outputs (the fp64 formula, rounded), to be spoilt.
class Computed {
 public:
  explicit Computed(const AttentionProblem& problem) : problem_(problem) {
    const std::int64_t b = problem.batch, h = problem.num_heads, g = problem.num_kv_heads, d = problem.head_dim;
    for (Tensor* t : {&q, &d_o, &o, &dq}) *t = Tensor(context_, {b, h, problem.seq_len, d}, problem.dtype);
    for (Tensor* t : {&k, &v, &dk, &dv}) *t = Tensor(context_, {b, g, problem.kv_len, d}, problem.dtype);
    lse = Tensor(context_, {b, h, problem.seq_len}, DType::fp32);
    std::uint64_t stream_id = 0;
    for (Tensor* t : {&q, &k, &v, &d_o}) fill_normal(*t, 5, stream_id++, context_.stream);
    compute(problem);
  }

  /// Overwrites the outputs with those of another problem of the same or a smaller size over the same memory.
  void compute(const AttentionProblem& problem) {
    const Implementation& reference = *find_implementation(DeviceKind::cpu, "reference");
    static_cast<void>(
        reference.forward(context_, problem, {in(q), in(k), in(v), operand_bhsd(o), lse.data_as<float>()}, true));
    reference.backward(context_, problem,
                       {in(q), in(k), in(v), in(o), in(d_o), lse.data_as<float>(), operand_bhsd(dq), operand_bhsd(dk),
                        operand_bhsd(dv)},
                       nullptr);
  }

  [[nodiscard]] Verifier verifier(double budget = 4e9) const {
    return Verifier(problem_, ScorePrecision::fp32, in(q), in(k), in(v), in(d_o), 11, budget);
  }
  [[nodiscard]] HostOutputs outputs() const { return {in(o), lse.data_as<float>(), in(dq), in(dk), in(dv)}; }

  /// Changes the elements [begin, begin + count) of a tensor.
  template <class Change>
  void change(Tensor& tensor, std::int64_t begin, std::int64_t count, Change change) const {
    const detail::RowOps& ops = detail::row_ops(tensor.dtype());
    char* at = static_cast<char*>(tensor.data()) + begin * std::int64_t(size_of(tensor.dtype()));
    std::vector<float> values(static_cast<std::size_t>(count));
    ops.to_float(at, values.data(), count);
    for (float& x : values) x = change(x);
    ops.from_float(values.data(), at, count);
  }

 private:
  static ConstOperand in(const Tensor& tensor) { return as_const(operand_bhsd(tensor)); }

  AttentionProblem problem_;
  CachingAllocator allocator_{Device::cpu()};
  Context context_{{Device::cpu(), nullptr}, &allocator_};

 public:
  Tensor q, k, v, d_o, o, lse, dq, dk, dv;  // after the allocator, which they need to the end
};

AttentionProblem small(DType dtype = DType::fp32) {
  AttentionProblem p;
  p.batch = 2;
  p.num_heads = 4;
  p.num_kv_heads = 2;
  p.seq_len = 70;
  p.kv_len = 90;
  p.head_dim = 16;
  p.dtype = dtype;
  return p;
}

/// Expects that exactly `output` fails.
void expect_failure(const CheckReport& report, const std::string& output) {
  for (const OutputCheck& check : report.outputs) EXPECT_EQ(check.passed, check.output != output) << check.output;
  EXPECT_FALSE(report.passed());
  EXPECT_EQ(report.failure().rfind(output + " is off by ", 0), 0U) << report.failure();
}

class VerifierOf : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, VerifierOf, testing::Values(DType::fp32, DType::bf16, DType::fp16),
                         [](const auto& test) { return std::string(name(test.param)); });

TEST_P(VerifierOf, AcceptsRightOutputsAndRoundingNoise) {
  Computed run(small(GetParam()));
  const Verifier verifier = run.verifier();
  EXPECT_FALSE(verifier.sampled());
  CheckReport report = verifier.check(run.outputs());
  EXPECT_TRUE(report.passed()) << report.failure();
  EXPECT_EQ(report.failure(), "");
  ASSERT_EQ(report.outputs.size(), 5U);
  EXPECT_LT(report.max_error(), unit(GetParam()) * 1.01);
  // An error of one more unit in the last place everywhere, of either sign by rows.
  for (Tensor* t : {&run.o, &run.dq, &run.dk, &run.dv}) {
    std::int64_t count = 0;
    run.change(*t, 0, t->elements(), [&](float x) {
      const double sign = (count++ / 16 * 0x9E3779B9) >> 16 & 1 ? 2 : -2;
      return x * static_cast<float>(1 + sign * unit(GetParam()));
    });
  }
  report = verifier.check(run.outputs());
  EXPECT_TRUE(report.passed()) << report.failure();
}

TEST_P(VerifierOf, FindsRoundingInOneDirection) {
  if (GetParam() == DType::fp32) return;  // its bound has room for hundreds of roundings
  for (const double by : {-1.0, 1.0}) {
    Computed run(small(GetParam()));
    const Verifier verifier = run.verifier();
    for (Tensor* t : {&run.o, &run.dv}) {
      // One unit in the last place.
      const auto factor = static_cast<float>(1 + by * 1.01 * unit(GetParam()));
      run.change(*t, 0, t->elements(), [&](float x) { return x * factor; });
    }
    const CheckReport report = verifier.check(run.outputs());
    for (const OutputCheck& check : report.outputs) {
      EXPECT_EQ(check.passed, check.output != "o" && check.output != "dv") << check.output;
      EXPECT_LE(check.max_error, check.tolerance) << check.output;
    }
    EXPECT_EQ(report.failure().rfind("o is rounded in one direction: by ", 0), 0U) << report.failure();
    EXPECT_GT(by * report.outputs.front().bias, 0.0);
  }
}

TEST_P(VerifierOf, FindsOneWrongElementInEachOutput) {
  Computed run(small(GetParam()));
  const Verifier verifier = run.verifier();
  const auto spoil = [&](Tensor& tensor, const std::string& output) {
    const std::int64_t place = tensor.elements() * 2 / 3;
    float before = 0;
    run.change(tensor, place, 1, [&](float x) {
      before = x;
      return x + (GetParam() == DType::fp32 ? 1e-3f : 0.1f);
    });
    expect_failure(verifier.check(run.outputs()), output);
    run.change(tensor, place, 1, [&](float) { return before; });
  };
  spoil(run.o, "o");
  spoil(run.lse, "lse");
  spoil(run.dq, "dq");
  spoil(run.dk, "dk");
  spoil(run.dv, "dv");
  EXPECT_TRUE(verifier.check(run.outputs()).passed());
}

TEST_P(VerifierOf, NanAndInfinityNeverPass) {
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    Computed run(small(GetParam()));
    const Verifier verifier = run.verifier();
    run.change(run.dv, 17, 1, [&](float) { return bad; });
    const CheckReport report = verifier.check(run.outputs());
    expect_failure(report, "dv");
    EXPECT_EQ(report.outputs.back().max_error, std::numeric_limits<double>::infinity());
  }
}

TEST_P(VerifierOf, FindsARowThatWasNotWritten) {
  Computed run(small(GetParam()));
  const Verifier verifier = run.verifier();
  std::memset(static_cast<char*>(run.o.data()) + 33 * 16 * size_of(GetParam()), 0xFF, 16 * size_of(GetParam()));
  expect_failure(verifier.check(run.outputs()), "o");
}

TEST_P(VerifierOf, FindsSwappedHeads) {
  Computed run(small(GetParam()));
  const Verifier verifier = run.verifier();
  const std::size_t head = 70 * 16 * size_of(GetParam());
  std::vector<char> first(head);
  char* data = static_cast<char*>(run.dq.data());
  std::memcpy(first.data(), data, head);
  std::memcpy(data, data + head, head);
  std::memcpy(data + head, first.data(), head);
  expect_failure(verifier.check(run.outputs()), "dq");
}

TEST(Verifier, FindsTheMaskAlignedAtTheTopLeft) {
  Computed run(small());
  const Verifier verifier = run.verifier();
  AttentionProblem top_left = small();  // query i sees keys up to i: what a square problem has, keys beyond unseen
  top_left.kv_len = top_left.seq_len;
  const Implementation& reference = *find_implementation(DeviceKind::cpu, "reference");
  CachingAllocator allocator(Device::cpu());
  static_cast<void>(reference.forward({{Device::cpu(), nullptr}, &allocator}, top_left,
                                      {as_const(operand_bhsd(run.q)), as_const(operand_bhsd(run.k)),
                                       as_const(operand_bhsd(run.v)), operand_bhsd(run.o), run.lse.data_as<float>()},
                                      false));
  const CheckReport report = verifier.check(run.outputs());
  EXPECT_FALSE(report.outputs[0].passed);
  EXPECT_FALSE(report.outputs[1].passed);
}

TEST(Verifier, LseIsMinusInfinityExactlyWhereNothingIsSeen) {
  AttentionProblem p = small();
  p.seq_len = 90;
  p.kv_len = 70;  // 20 rows see nothing
  Computed run(p);
  const Verifier verifier = run.verifier();
  EXPECT_TRUE(verifier.check(run.outputs()).passed()) << verifier.check(run.outputs()).failure();
  float* lse = run.lse.data_as<float>();
  ASSERT_EQ(lse[19], -std::numeric_limits<float>::infinity());
  lse[19] = -1e30f;
  expect_failure(verifier.check(run.outputs()), "lse");
  lse[19] = -std::numeric_limits<float>::infinity();
  lse[20] = -std::numeric_limits<float>::infinity();
  expect_failure(verifier.check(run.outputs()), "lse");
}

TEST(Verifier, LseErrorsAreHeldAgainstOneWhenTheLogarithmIsSmall) {
  AttentionProblem p;  // one key: LSE is the score
  p.head_dim = 1;
  Computed run(p);
  *run.q.data_as<float>() = 1e-3f;
  *run.k.data_as<float>() = 1.0f;
  run.compute(p);
  const Verifier verifier = run.verifier();
  *run.lse.data_as<float>() += 0.9e-5f;
  EXPECT_TRUE(verifier.check(run.outputs()).passed());
  *run.lse.data_as<float>() += 0.2e-5f;
  expect_failure(verifier.check(run.outputs()), "lse");
}

TEST(Verifier, ForwardAloneAndOutputsLeftOut) {
  Computed run(small());
  const HostOutputs all = run.outputs();
  const Verifier forward(small(), ScorePrecision::fp32, as_const(operand_bhsd(run.q)), as_const(operand_bhsd(run.k)),
                         as_const(operand_bhsd(run.v)), {}, 1);
  EXPECT_EQ(forward.check(all).outputs.size(), 2U);
  HostOutputs some;
  some.dv = all.dv;
  const CheckReport report = run.verifier().check(some);
  ASSERT_EQ(report.outputs.size(), 1U);
  EXPECT_EQ(report.outputs[0].output, "dv");
  EXPECT_TRUE(report.passed());
}

TEST(Verifier, NamesTheWorstElement) {
  Computed run(small());
  run.change(run.dk, ((1 * 2 + 1) * 90 + 17) * 16 + 3, 1, [](float) { return 100.0f; });
  const CheckReport report = run.verifier().check(run.outputs());
  EXPECT_NE(report.failure().find("b1 h1 row 17 col 3: got 100, expected "), std::string::npos) << report.failure();
}

AttentionProblem larger(DType dtype, bool causal) {
  AttentionProblem p;
  p.batch = 2;
  p.num_heads = 4;
  p.num_kv_heads = 2;
  p.seq_len = 200;
  p.kv_len = 150;
  p.head_dim = 32;
  p.dtype = dtype;
  p.causal = causal;
  return p;
}

TEST_P(VerifierOf, SampledChecksAcceptRightOutputsAndFindWrongHeads) {
  for (const bool causal : {true, false}) {
    const AttentionProblem p = larger(GetParam(), causal);
    Computed run(p);
    // The first budget leaves room for exact key rows of some groups, the second only for the run's own statistics.
    for (const double budget : {1.2e7, 1e6}) {
      const Verifier verifier = run.verifier(budget);
      EXPECT_TRUE(verifier.sampled());
      CheckReport report = verifier.check(run.outputs());
      ASSERT_EQ(report.outputs.size(), 5U);
      EXPECT_TRUE(report.passed()) << report.failure() << " budget " << budget;
      const auto spoil = [&](Tensor& tensor, const std::string& output) {
        std::vector<char> right(tensor.bytes());
        std::memcpy(right.data(), tensor.data(), right.size());
        run.change(tensor, 0, tensor.elements(), [&](float x) { return x * 1.1f + 0.05f; });
        report = verifier.check(run.outputs());
        for (const OutputCheck& check : report.outputs) {
          EXPECT_FALSE(check.output == output && check.passed) << output << " budget " << budget;
        }
        std::memcpy(tensor.data(), right.data(), right.size());
      };
      spoil(run.o, "o");
      spoil(run.lse, "lse");
      spoil(run.dq, "dq");
      spoil(run.dk, "dk");
      spoil(run.dv, "dv");
    }
  }
}

TEST(Verifier, TheSampleIsTheSameEveryTime) {
  const AttentionProblem p = larger(DType::fp32, true);
  Computed run(p);
  const CheckReport first = run.verifier(1e6).check(run.outputs()), second = run.verifier(1e6).check(run.outputs());
  for (std::size_t i = 0; i < first.outputs.size(); ++i) {
    EXPECT_EQ(first.outputs[i].max_error, second.outputs[i].max_error);
    EXPECT_EQ(first.outputs[i].worst, second.outputs[i].worst);
  }
}

TEST(Verifier, KeysOfALargeProblemNeedTheRunsOwnStatistics) {
  const AttentionProblem p = larger(DType::fp32, false);
  Computed run(p);
  HostOutputs some;
  some.dk = run.outputs().dk;
  EXPECT_THROW(static_cast<void>(run.verifier(1e6).check(some)), CheckError);
}

}  // namespace
}  // namespace warpmeter::attention
