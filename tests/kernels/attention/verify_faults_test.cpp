#include <string>

#include <gtest/gtest.h>

#include "kernels/attention/naive.hpp"
#include "tests/kernels/attention/emulated_flash.hpp"
#include "tests/kernels/attention/operands.hpp"

/// What the verifier says of kernels that have scores in fp32 and round P: right ones pass, at usual scores and at
/// extreme ones; faults are found in both.
namespace warpmeter::attention::conformance {
namespace {

using Fault = EmulatedFlash::Fault;
using Maximum = EmulatedFlash::Maximum;

constexpr Values kValues[] = {Values::normal, Values::large_scores, Values::negative_lse, Values::very_negative,
                              Values::inexact_scores};

Case make_case(DType dtype, std::int64_t head_dim, Values values, bool causal) {
  Case c;
  c.problem.seq_len = 150;
  c.problem.kv_len = 170;
  c.problem.head_dim = head_dim;
  c.problem.dtype = dtype;
  c.problem.causal = causal;
  c.values = values;
  return c;
}

CheckReport check(const Implementation& implementation, const Case& c) {
  const Subject subject(implementation);
  Operands operands(subject, c);
  operands.execute();
  return operands.verifier(4e9).check(operands.outputs().outputs());
}

class VerifierFaults : public testing::TestWithParam<std::tuple<DType, Maximum>> {
 protected:
  [[nodiscard]] DType dtype() const { return std::get<0>(GetParam()); }
  [[nodiscard]] Maximum maximum() const { return std::get<1>(GetParam()); }

  /// Whether the fault is found in a case.
  [[nodiscard]] bool found(Fault fault, std::int64_t head_dim, Values values, bool causal) const {
    return !check(EmulatedFlash(maximum(), fault), make_case(dtype(), head_dim, values, causal)).passed();
  }
};

INSTANTIATE_TEST_SUITE_P(All, VerifierFaults,
                         testing::Combine(testing::Values(DType::bf16, DType::fp16),
                                          testing::Values(Maximum::followed, Maximum::lagging)),
                         [](const auto& test) {
                           return std::string(name(std::get<0>(test.param))) +
                                  (std::get<1>(test.param) == Maximum::lagging ? "_lagging" : "_followed");
                         });

/// Right kernels keep a third of the bound or more in hand, and so would notice if it shrank.
TEST_P(VerifierFaults, RightKernelsPass) {
  for (const Values values : kValues) {
    for (const std::int64_t head_dim : {16, 32, 72}) {
      for (const bool causal : {true, false}) {
        const Case c = make_case(dtype(), head_dim, values, causal);
        const CheckReport report = check(EmulatedFlash(maximum()), c);
        EXPECT_TRUE(report.passed()) << describe(c) << ": " << report.failure();
        for (const OutputCheck& output : report.outputs) {
          EXPECT_LT(output.max_error, 0.67 * output.tolerance) << describe(c) << " " << output.output;
        }
      }
    }
  }
}

TEST_P(VerifierFaults, AMovedMaskIsFound) {
  // Of inexact scores of 1e4 one more key is seldom the largest, and has no weight then.
  for (const Values values : {Values::normal, Values::large_scores, Values::negative_lse}) {
    for (const std::int64_t head_dim : {16, 64}) {
      EXPECT_TRUE(found(Fault::mask_moved, head_dim, values, true))
          << describe(make_case(dtype(), head_dim, values, true));
    }
  }
}

TEST_P(VerifierFaults, AMissingKeyIsFound) {
  for (const Values values : kValues) {
    for (const bool causal : {true, false}) {
      EXPECT_TRUE(found(Fault::key_dropped, 16, values, causal)) << describe(make_case(dtype(), 16, values, causal));
      EXPECT_TRUE(found(Fault::key_dropped, 64, values, causal)) << describe(make_case(dtype(), 64, values, causal));
    }
  }
}

TEST_P(VerifierFaults, ProbabilitiesThatAreCutAreFound) {
  for (const Values values : {Values::normal, Values::large_scores, Values::negative_lse, Values::inexact_scores}) {
    for (const bool causal : {true, false}) {
      EXPECT_TRUE(found(Fault::p_cut, 16, values, causal)) << describe(make_case(dtype(), 16, values, causal));
      EXPECT_TRUE(found(Fault::p_cut, 64, values, causal)) << describe(make_case(dtype(), 64, values, causal));
    }
  }
}

TEST_P(VerifierFaults, AStaleMaximumIsFound) {
  for (const Values values : kValues) {
    // Usual scores stay within 2^8 of each other: a lagging maximum never moves, and nothing is wrong.
    const bool wrong = maximum() == Maximum::followed || values != Values::normal;
    for (const bool causal : {true, false}) {
      EXPECT_EQ(found(Fault::maximum_stale, 16, values, causal), wrong)
          << describe(make_case(dtype(), 16, values, causal));
    }
  }
}

TEST_P(VerifierFaults, StatisticsOfTwoBytesAreFound) {
  for (const Values values : kValues) {
    EXPECT_TRUE(found(Fault::lse_rounded, 16, values, false)) << describe(make_case(dtype(), 16, values, false));
  }
}

TEST_P(VerifierFaults, AMissingDeltaIsFound) {
  for (const Values values : kValues) {
    EXPECT_TRUE(found(Fault::d_left_out, 16, values, true)) << describe(make_case(dtype(), 16, values, true));
  }
}

/// Scores of 1e4 that a backward adds up in another order than its forward: P = exp(S - LSE) is off by the difference.
/// bf16 does not see it, of which P has 8 bits.
TEST(VerifierFaults, ScoresAddedUpInTwoWaysAreFound) {
  const Case c = make_case(DType::fp16, 256, Values::inexact_scores, false);
  const CheckReport right = check(EmulatedFlash(Maximum::lagging), c);
  EXPECT_TRUE(right.passed()) << right.failure();
  const CheckReport wrong = check(EmulatedFlash(Maximum::lagging, Fault::scores_differ), c);
  EXPECT_EQ(wrong.failure().rfind("dv is off by ", 0), 0U) << wrong.failure();
}

/// The same outputs against what is allowed where scores are stored: at 1e4 next to everything.
TEST(VerifierFaults, StoredScoresOf1e4AreNoYardstickForOthers) {
  const Case c = make_case(DType::bf16, 64, Values::inexact_scores, false);
  const EmulatedFlash right(Maximum::followed);
  const Subject flash(right), naive(naive_cpu());
  Operands of_flash(flash, c), of_naive(naive, c);
  of_flash.execute();
  const HostCopies outputs = of_flash.outputs();
  const CheckReport fp32 = of_flash.verifier(4e9).check(outputs.outputs());
  const CheckReport stored = of_naive.verifier(4e9).check(outputs.outputs());
  ASSERT_EQ(fp32.outputs.size(), stored.outputs.size());
  for (const std::size_t i : {0, 1, 4}) {  // o, lse, dv
    const double ratio = stored.outputs[i].tolerance / fp32.outputs[i].tolerance;
    EXPECT_GT(ratio, i == 1 ? 100.0 : 20.0) << fp32.outputs[i].output;
  }
}

/// Scores that fp16 cannot hold: NaN or, where all are -inf, zeros; a mismatch that says why.
TEST(VerifierFaults, OverflowOfStoredScoresIsNamed) {
  for (const char* name : {"naive", "fused"}) {
    const Subject subject(DeviceKind::cpu, name);
    for (const Values values : {Values::large_scores, Values::very_negative}) {
      Case c = make_case(DType::fp16, 64, values, false);
      CheckReport report = check(subject.implementation(), c);
      EXPECT_FALSE(report.passed()) << name;
      EXPECT_EQ(report.failure().rfind("o is off by ", 0), 0U) << report.failure();
      EXPECT_NE(report.failure().find("; |q . k| reaches 1.6"), std::string::npos) << report.failure();
      EXPECT_NE(report.failure().find("and scores that are stored in fp16 end at 65504"), std::string::npos);
      c.problem.dtype = DType::bf16;
      EXPECT_EQ(check(subject.implementation(), c).note, "");
      c = make_case(DType::fp16, 16, Values::negative_lse, false);
      EXPECT_EQ(check(subject.implementation(), c).note, "");
    }
  }
}

}  // namespace
}  // namespace warpmeter::attention::conformance
