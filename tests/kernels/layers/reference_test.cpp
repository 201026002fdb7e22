// The references themselves: their gradients against central differences of their own forward, in fp64.
#include "tests/kernels/layers/reference.hpp"

#include <cmath>
#include <functional>

#include <gtest/gtest.h>

namespace warpmeter::layers::testing {
namespace {

double dot(const Values& a, const Values& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// d(loss)/d(x) by central differences.
Values differences(Values x, const std::function<double(const Values&)>& loss) {
  constexpr double kStep = 1e-5;
  Values gradient(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double kept = x[i];
    x[i] = kept + kStep;
    const double above = loss(x);
    x[i] = kept - kStep;
    gradient[i] = (above - loss(x)) / (2 * kStep);
    x[i] = kept;
  }
  return gradient;
}

TEST(Reference, RmsNormGradients) {
  const Values s = normal(3 * 7, 1), weight = normal(7, 2), pull = normal(3 * 7, 3);
  const RmsNormGradients gradients = rmsnorm_gradients(s, weight, 1e-5, pull);
  const auto by_s = [&](const Values& x) { return dot(rmsnorm(x, weight, 1e-5).out, pull); };
  const auto by_weight = [&](const Values& x) { return dot(rmsnorm(s, x, 1e-5).out, pull); };
  EXPECT_TRUE(near(gradients.d_s, differences(s, by_s), DType::fp64, 1e-8));
  EXPECT_TRUE(near(gradients.d_weight, differences(weight, by_weight), DType::fp64, 1e-8));
}

TEST(Reference, RopeBackwardIsTheInverseRotation) {
  const Values x = normal(6 * 2 * 8, 1), pull = normal(6 * 2 * 8, 2);
  const auto by_x = [&](const Values& values) { return dot(rope(values, 6, 3, 2, 8, false), pull); };
  EXPECT_TRUE(near(rope(pull, 6, 3, 2, 8, true), differences(x, by_x), DType::fp64, 1e-8));
  EXPECT_TRUE(near(rope(rope(x, 6, 3, 2, 8, false), 6, 3, 2, 8, true), x, DType::fp64, 1e-14));
}

TEST(Reference, SwigluGradients) {
  const Values gate = normal(20, 1, 3), up = normal(20, 2), pull = normal(20, 3);
  const SwigluGradients gradients = swiglu_gradients(gate, up, pull);
  EXPECT_TRUE(near(gradients.d_gate, differences(gate, [&](const Values& x) { return dot(swiglu(x, up), pull); }),
                   DType::fp64, 1e-8));
  EXPECT_TRUE(near(gradients.d_up, differences(up, [&](const Values& x) { return dot(swiglu(gate, x), pull); }),
                   DType::fp64, 1e-8));
}

TEST(Reference, CrossEntropyGradient) {
  const Values logits = normal(4 * 9, 1, 2);
  const Tokens targets = {0, 8, 3, 3};
  const auto loss = [&](const Values& x) {
    double sum = 0;
    for (const double value : cross_entropy(x, 9, targets).losses) sum += value;
    return sum;
  };
  EXPECT_TRUE(near(cross_entropy(logits, 9, targets).d_logits, differences(logits, loss), DType::fp64, 1e-8));
}

TEST(Reference, EmbeddingGradient) {
  const Values table = normal(5 * 4, 1), pull = normal(6 * 4, 2);
  const Tokens tokens = {4, 0, 4, 1, 4, 1};
  const auto loss = [&](const Values& x) { return dot(embedding(x, 4, tokens), pull); };
  EXPECT_TRUE(near(embedding_gradient(pull, 4, tokens, 5), differences(table, loss), DType::fp64, 1e-8));
}

TEST(Reference, LinearGradients) {
  const std::int64_t rows = 5, in = 4, out = 3;
  const Values x = normal(rows * in, 1), weight = normal(out * in, 2), pull = normal(rows * out, 3);
  const auto forward = [&](const Values& px, const Values& pw) {
    return dot(matmul(linear_forward(rows, in, out, DType::fp32, DType::fp32), px, pw), pull);
  };
  EXPECT_TRUE(near(matmul(linear_input_gradient(rows, in, out, DType::fp32, DType::fp32), pull, weight),
                   differences(x, [&](const Values& v) { return forward(v, weight); }), DType::fp64, 1e-8));
  EXPECT_TRUE(near(matmul(linear_weight_gradient(rows, in, out, DType::fp32, DType::fp32, false), pull, x),
                   differences(weight, [&](const Values& v) { return forward(x, v); }), DType::fp64, 1e-8));
}

}  // namespace
}  // namespace warpmeter::layers::testing
