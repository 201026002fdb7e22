#include "kernels/attention/reference.hpp"

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

namespace warpmeter::attention {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<std::int64_t> all(std::int64_t count) {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(count));
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

/// Dense fp32 inputs of a problem, and an evaluation of them that owns its workspace.
struct Inputs {
  AttentionProblem problem;
  std::vector<float> q, k, v, d_o;
  std::vector<double> workspace;

  [[nodiscard]] ConstOperand dense(const std::vector<float>& data, std::int64_t heads, std::int64_t rows) const {
    const std::int64_t row = problem.head_dim;
    return {data.data(), heads * rows * row, rows * row, row};
  }
  ReferenceResult evaluate(ReferenceRequest request) {
    const ReferenceInputs inputs{
        dense(q, problem.num_heads, problem.seq_len), dense(k, problem.num_kv_heads, problem.kv_len),
        dense(v, problem.num_kv_heads, problem.kv_len), dense(d_o, problem.num_heads, problem.seq_len)};
    workspace.assign(reference_workspace(problem, request), std::nan(""));
    return evaluate_reference(problem, inputs, request, workspace.data());
  }
};

TEST(Reference, TwoKeysByHand) {
  Inputs in;
  in.problem.kv_len = 2;
  in.problem.head_dim = 1;
  in.q = {1};
  in.k = {0, std::log(3.0f)};  // weights 1/4 and 3/4
  in.v = {4, 8};
  in.d_o = {1};
  const auto queries = all(1), keys = all(2);
  const ReferenceResult r = in.evaluate({0, 0, queries, keys, true});
  EXPECT_NEAR(r.o[0], 7.0, 1e-6);
  EXPECT_NEAR(r.lse[0], std::log(4.0), 1e-6);
  // dP = 4, 8; D = 7; dS = -3/4, 3/4.
  EXPECT_NEAR(r.dq[0], 0.75 * std::log(3.0), 1e-6);
  EXPECT_NEAR(r.dk[0], -0.75, 1e-6);
  EXPECT_NEAR(r.dk[1], 0.75, 1e-6);
  EXPECT_NEAR(r.dv[0], 0.25, 1e-6);
  EXPECT_NEAR(r.dv[1], 0.75, 1e-6);
  EXPECT_NEAR(r.largest_term, 0.75 * (8 + 7), 1e-5);
  EXPECT_NEAR(r.largest_key_term, 0.75 * (8 + 7), 1e-5);
}

/// Each query's rounding error of D lands in the one key's gradient.
TEST(Reference, ErrorsOfAKeyAddUpOverItsQueries) {
  Inputs in;
  in.problem.seq_len = 2;
  in.problem.head_dim = 1;
  in.problem.causal = false;
  in.q = {1, 1};
  in.k = {2};
  in.v = {3};
  in.d_o = {1, -2};  // P = 1, dP = D = 3 and -6
  const auto queries = all(2), keys = all(1);
  const ReferenceResult r = in.evaluate({0, 0, queries, keys, true});
  EXPECT_NEAR(r.largest_term, 6 + 6, 1e-12);
  EXPECT_NEAR(r.largest_key_term, std::hypot(3 + 3, 6 + 6), 1e-12);
}

TEST(Reference, ScaleIsOneOverTheRootOfTheHeadDim) {
  Inputs in;
  in.problem.head_dim = 4;
  in.q = {1, 2, 3, 4};
  in.k = {4, 3, 2, 1};
  in.v = {5, 6, 7, 8};
  const auto queries = all(1);
  const ReferenceResult r = in.evaluate({0, 0, queries, {}, false});
  EXPECT_DOUBLE_EQ(r.lse[0], 20.0 / 2.0);
  EXPECT_EQ(r.o[3], 8.0);
}

TEST(Reference, MaskIsAlignedAtTheBottomRight) {
  Inputs in;
  in.problem.seq_len = 3;
  in.problem.kv_len = 2;
  in.problem.head_dim = 1;
  in.q = {1, 1, 1};
  in.k = {0, 0};
  in.v = {2, 6};
  in.d_o = {1, 1, 1};
  const auto queries = all(3), keys = all(2);
  const ReferenceResult r = in.evaluate({0, 0, queries, keys, true});
  EXPECT_EQ(r.o[0], 0.0);  // sees nothing
  EXPECT_EQ(r.lse[0], -kInfinity);
  EXPECT_EQ(r.dq[0], 0.0);
  EXPECT_EQ(r.o[1], 2.0);  // the first key alone
  EXPECT_EQ(r.o[2], 4.0);  // both
  EXPECT_EQ(r.dv[0], 1.5);
  EXPECT_EQ(r.dv[1], 0.5);
}

/// Grouped heads, a causal mask, more keys than queries; values are multiples of 2^-6, so that steps are exact in fp32.
Inputs random_inputs() {
  Inputs in;
  in.problem.batch = 2;
  in.problem.num_heads = 4;
  in.problem.num_kv_heads = 2;
  in.problem.seq_len = 5;
  in.problem.kv_len = 7;
  in.problem.head_dim = 3;
  std::uint32_t state = 12345;
  const auto fill = [&](std::vector<float>& x, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      state = state * 1664525u + 1013904223u;
      x.push_back(static_cast<float>(static_cast<int>(state >> 24) - 128) / 64.0f);
    }
  };
  fill(in.q, in.problem.query_elements());
  fill(in.k, in.problem.kv_elements());
  fill(in.v, in.problem.kv_elements());
  fill(in.d_o, in.problem.query_elements());
  return in;
}

double loss(Inputs& in) {
  double sum = 0;
  const auto queries = all(in.problem.seq_len);
  for (std::int64_t b = 0; b < in.problem.batch; ++b) {
    for (std::int64_t g = 0; g < in.problem.num_kv_heads; ++g) {
      const ReferenceResult r = in.evaluate({b, g, queries, {}, false});
      const std::int64_t first = (b * in.problem.num_kv_heads + g) * static_cast<std::int64_t>(r.o.size());
      for (std::size_t i = 0; i < r.o.size(); ++i) sum += r.o[i] * double(in.d_o[std::size_t(first) + i]);
    }
  }
  return sum;
}

TEST(Reference, GradientsAreThoseOfTheLoss) {
  Inputs in = random_inputs();
  const auto queries = all(in.problem.seq_len), keys = all(in.problem.kv_len);
  std::vector<double> dq, dk, dv;
  for (std::int64_t b = 0; b < in.problem.batch; ++b) {
    for (std::int64_t g = 0; g < in.problem.num_kv_heads; ++g) {
      const ReferenceResult r = in.evaluate({b, g, queries, keys, true});
      dq.insert(dq.end(), r.dq.begin(), r.dq.end());
      dk.insert(dk.end(), r.dk.begin(), r.dk.end());
      dv.insert(dv.end(), r.dv.begin(), r.dv.end());
    }
  }
  const auto check = [&](std::vector<float>& x, const std::vector<double>& gradient, const char* name) {
    ASSERT_EQ(x.size(), gradient.size());
    const float h = 0x1p-7f;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const float here = x[i];
      const auto at = [&](float step) {
        x[i] = here + step;
        return loss(in);
      };
      const double slope = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * double(h));
      x[i] = here;
      EXPECT_NEAR(gradient[i], slope, 1e-6) << name << " " << i;
    }
  };
  check(in.q, dq, "dq");
  check(in.k, dk, "dk");
  check(in.v, dv, "dv");
}

TEST(Reference, SelectedRowsAreThoseOfTheWhole) {
  Inputs in = random_inputs();
  const auto queries = all(in.problem.seq_len), keys = all(in.problem.kv_len);
  const auto copy = [](std::span<const double> x) { return std::vector<double>(x.begin(), x.end()); };
  ReferenceResult r = in.evaluate({1, 1, queries, keys, true});
  const auto o = copy(r.o), lse = copy(r.lse), dq = copy(r.dq), dk = copy(r.dk), dv = copy(r.dv);
  const std::vector<std::int64_t> some_queries{1, 4}, some_keys{0, 3, 6};
  r = in.evaluate({1, 1, some_queries, some_keys, true});
  const std::size_t d = 3;
  for (std::size_t member = 0; member < 2; ++member) {
    for (std::size_t i = 0; i < some_queries.size(); ++i) {
      const std::size_t row = member * 5 + static_cast<std::size_t>(some_queries[i]), mine = member * 2 + i;
      EXPECT_EQ(r.lse[mine], lse[row]);
      for (std::size_t c = 0; c < d; ++c) {
        EXPECT_EQ(r.o[mine * d + c], o[row * d + c]);
        EXPECT_EQ(r.dq[mine * d + c], dq[row * d + c]);
      }
    }
  }
  for (std::size_t i = 0; i < some_keys.size(); ++i) {
    for (std::size_t c = 0; c < d; ++c) {
      EXPECT_EQ(r.dk[i * d + c], dk[static_cast<std::size_t>(some_keys[i]) * d + c]);
      EXPECT_EQ(r.dv[i * d + c], dv[static_cast<std::size_t>(some_keys[i]) * d + c]);
    }
  }
  // With LSE and D given the same keys need no query rows at all.
  std::vector<double> known_d(lse.size(), 0.0);
  const std::size_t first = (1 * 4 + 2) * 15;  // batch 1, query head 2
  for (std::size_t i = 0; i < known_d.size(); ++i) {
    for (std::size_t c = 0; c < d; ++c) known_d[i] += o[i * d + c] * double(in.d_o[first + i * d + c]);
  }
  ReferenceRequest request{1, 1, {}, some_keys, true};
  request.known_lse = lse.data();
  request.known_d = known_d.data();
  r = in.evaluate(request);
  for (std::size_t i = 0; i < some_keys.size() * d; ++i) {
    const std::size_t from = static_cast<std::size_t>(some_keys[i / d]) * d + i % d;
    EXPECT_NEAR(r.dk[i], dk[from], 1e-14);
    EXPECT_NEAR(r.dv[i], dv[from], 1e-14);
  }
}

AttentionProblem one_number(DType dtype) {
  AttentionProblem p;
  p.head_dim = 1;
  p.dtype = dtype;
  return p;
}

/// LSE of one key is its score: q * k, rounded as the yardstick rounds.
double score(DType dtype, Rounding rounding, std::uint16_t q, std::uint16_t k,
             ScorePrecision scores = ScorePrecision::storage) {
  const std::uint16_t v = 0;
  const ReferenceInputs inputs{{&q, 1, 1, 1}, {&k, 1, 1, 1}, {&v, 1, 1, 1}, {}};
  const std::int64_t row = 0;
  ReferenceRequest request;
  request.queries = {&row, 1};
  request.rounding = rounding;
  request.scores = scores;
  std::vector<double> workspace(reference_workspace(one_number(dtype), request));
  return evaluate_reference(one_number(dtype), inputs, request, workspace.data()).lse[0];
}

TEST(Reference, YardstickRoundsEveryStepToTheType) {
  const std::uint16_t bf16_next = 0x3F81;  // 1 + 2^-7
  EXPECT_EQ(score(DType::bf16, Rounding::none, bf16_next, bf16_next), 1 + 0x1p-6 + 0x1p-14);
  EXPECT_EQ(score(DType::bf16, Rounding::bf16, bf16_next, bf16_next), 1 + 0x1p-6);
  const std::uint16_t fp16_next = 0x3C01;  // 1 + 2^-10
  EXPECT_EQ(score(DType::fp16, Rounding::none, fp16_next, fp16_next), 1 + 0x1p-9 + 0x1p-20);
  EXPECT_EQ(score(DType::fp16, Rounding::fp16, fp16_next, fp16_next), 1 + 0x1p-9);
  const std::uint16_t fp16_256 = 0x5C00;
  EXPECT_EQ(score(DType::fp16, Rounding::none, fp16_256, fp16_256), 65536.0);
  EXPECT_TRUE(std::isnan(score(DType::fp16, Rounding::fp16, fp16_256, fp16_256)));  // inf - inf in the softmax
  const std::uint16_t fp16_small = 0x0400, fp16_sixteenth = 0x1600;  // 2^-14 and 1.5 * 2^-10: a tie among subnormals
  EXPECT_EQ(score(DType::fp16, Rounding::none, fp16_small, fp16_sixteenth), 1.5 * 0x1p-24);
  EXPECT_EQ(score(DType::fp16, Rounding::fp16, fp16_small, fp16_sixteenth), 0x1p-23);
}

TEST(Reference, YardstickOfFp32ScoresLeavesThem) {
  const ScorePrecision fp32 = ScorePrecision::fp32;
  EXPECT_EQ(score(DType::bf16, Rounding::bf16, 0x3F81, 0x3F81, fp32), 1 + 0x1p-6 + 0x1p-14);
  EXPECT_EQ(score(DType::fp16, Rounding::fp16, 0x5C00, 0x5C00, fp32), 65536.0);
}

TEST(Reference, YardstickOfFp32ScoresAddsSixteenProductsAtATimeAndCuts) {
  AttentionProblem p = one_number(DType::fp16);
  p.head_dim = 17;
  std::vector<std::uint16_t> q(17, 0), v(17, 0);
  const auto lse = [&](Rounding rounding) {
    const ReferenceInputs inputs{{q.data(), 17, 17, 17}, {q.data(), 17, 17, 17}, {v.data(), 17, 17, 17}, {}};
    const std::int64_t row = 0;
    ReferenceRequest request;
    request.queries = {&row, 1};
    request.rounding = rounding;
    std::vector<double> workspace(reference_workspace(p, request));
    const ReferenceResult result = evaluate_reference(p, inputs, request, workspace.data());
    EXPECT_EQ(result.largest_product, result.lse[0] / p.scale());
    return result.lse[0] / p.scale();
  };
  q[0] = 0x5400;   // 64: 2^12 in the first step
  q[16] = 0x2400;  // 2^-6: 2^-12 in the second, the 25th bit
  EXPECT_EQ(lse(Rounding::none), 0x1p12 + 0x1p-12);
  EXPECT_EQ(lse(Rounding::fp16), 0x1p12);
  std::swap(q[16], q[1]);  // both in one step: no more than one cut, of nothing that fp32 does not hold
  q[2] = 0x2400;           // 2^-11 in all: the 24th bit
  EXPECT_EQ(lse(Rounding::fp16), 0x1p12 + 0x1p-11);
}

/// P of one key is 1: an old maximum puts it between two neighbours, and LSE's roundings move it in the backward.
TEST(Reference, YardstickOfFp32ScoresMovesAProbabilityOfOne) {
  const std::uint16_t one_fp16 = 0x3C00, one_bf16 = 0x3F80, fp16_256 = 0x5C00;
  const std::int64_t row = 0;
  std::vector<double> workspace;
  const auto evaluate = [&](DType dtype, const std::uint16_t& one, const std::uint16_t& q) {
    const ReferenceInputs inputs{{&q, 1, 1, 1}, {&q, 1, 1, 1}, {&one, 1, 1, 1}, {&one, 1, 1, 1}};
    ReferenceRequest request;
    request.queries = request.keys = {&row, 1};
    request.backward = true;
    request.rounding = dtype == DType::bf16 ? Rounding::bf16 : Rounding::fp16;
    workspace.resize(reference_workspace(one_number(dtype), request));
    return evaluate_reference(one_number(dtype), inputs, request, workspace.data());
  };
  EXPECT_EQ(evaluate(DType::fp16, one_fp16, one_fp16).o[0], 1 - 0x1p-11);
  EXPECT_EQ(evaluate(DType::bf16, one_bf16, one_bf16).o[0], 1 - 0x1p-8);
  const ReferenceResult result = evaluate(DType::fp16, one_fp16, fp16_256);  // LSE = 2^16: 6 * 2^-10 more
  EXPECT_EQ(result.lse[0], 65536.0);
  EXPECT_EQ(result.dv[0], 1 + 6 * 0x1p-10);
}

}  // namespace
}  // namespace warpmeter::attention
