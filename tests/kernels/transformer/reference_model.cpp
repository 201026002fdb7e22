#include "tests/kernels/transformer/reference_model.hpp"

#include <algorithm>
#include <cmath>

namespace warpmeter::transformer::testing {

namespace {

using namespace layers::testing;

Values linear(const Values& x, const Values& weight, std::int64_t rows, std::int64_t in, std::int64_t out) {
  return matmul(layers::linear_forward(rows, in, out, DType::fp32, DType::fp32), x, weight);
}

void add(Values& x, const Values& y) {
  for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

/// q, k, v: (batch, context, heads, head_dim).
Values attention(const ModelConfig& c, std::int64_t batch, std::int64_t context, const Values& q, const Values& k,
                 const Values& v) {
  const std::int64_t dim = c.head_dim();
  const auto at = [&](std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t i) {
    return static_cast<std::size_t>(((b * context + t) * c.heads + h) * dim + i);
  };
  Values out(q.size(), 0.0), scores(static_cast<std::size_t>(context));
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t h = 0; h < c.heads; ++h) {
      for (std::int64_t t = 0; t < context; ++t) {
        double largest = -INFINITY, sum = 0;
        for (std::int64_t s = 0; s <= t; ++s) {
          double dot = 0;
          for (std::int64_t i = 0; i < dim; ++i) dot += q[at(b, t, h, i)] * k[at(b, s, h, i)];
          scores[static_cast<std::size_t>(s)] = dot / std::sqrt(static_cast<double>(dim));
          largest = std::max(largest, scores[static_cast<std::size_t>(s)]);
        }
        for (std::int64_t s = 0; s <= t; ++s) {
          double& p = scores[static_cast<std::size_t>(s)];
          p = std::exp(p - largest);
          sum += p;
        }
        for (std::int64_t s = 0; s <= t; ++s) {
          const double p = scores[static_cast<std::size_t>(s)] / sum;
          for (std::int64_t i = 0; i < dim; ++i) out[at(b, t, h, i)] += p * v[at(b, s, h, i)];
        }
      }
    }
  }
  return out;
}

}  // namespace

Values ReferenceModel::logits(const Tokens& tokens) const {
  const ModelConfig& c = config;
  const std::int64_t rows = batch * context, width = c.d_model;
  std::size_t next = 0;
  const auto parameter = [&]() -> const Values& { return parameters.at(next++); };
  Values x = embedding(parameter(), width, tokens);
  for (std::int64_t layer = 0; layer < c.layers; ++layer) {
    const Values n1 = rmsnorm(x, parameter(), 1e-5).out;
    Values q = linear(n1, parameter(), rows, width, width), k = linear(n1, parameter(), rows, width, width);
    const Values v = linear(n1, parameter(), rows, width, width);
    q = rope(q, rows, context, c.heads, c.head_dim(), false);
    k = rope(k, rows, context, c.heads, c.head_dim(), false);
    add(x, linear(attention(c, batch, context, q, k, v), parameter(), rows, width, width));
    const Values n2 = rmsnorm(x, parameter(), 1e-5).out;
    const Values gate = linear(n2, parameter(), rows, width, c.d_ff), up = linear(n2, parameter(), rows, width, c.d_ff);
    add(x, linear(swiglu(gate, up), parameter(), rows, c.d_ff, width));
  }
  const Values last = rmsnorm(x, parameter(), 1e-5).out;
  return linear(last, parameter(), rows, width, c.vocab);
}

double ReferenceModel::loss(const Tokens& tokens, const Tokens& targets) const {
  double sum = 0;
  for (const double value : cross_entropy(logits(tokens), config.vocab, targets).losses) sum += value;
  return sum / static_cast<double>(targets.size());
}

}  // namespace warpmeter::transformer::testing
