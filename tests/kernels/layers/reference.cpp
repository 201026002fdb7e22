#include "tests/kernels/layers/reference.hpp"

#include <algorithm>
#include <cmath>

namespace warpmeter::layers::testing {

namespace {

std::size_t index(std::int64_t i) {
  return static_cast<std::size_t>(i);
}
double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

}  // namespace

Values embedding(const Values& table, std::int64_t width, const Tokens& tokens) {
  Values out;
  for (const std::int32_t token : tokens) {
    out.insert(out.end(), table.begin() + token * width, table.begin() + (token + 1) * width);
  }
  return out;
}

Values embedding_gradient(const Values& d_out, std::int64_t width, const Tokens& tokens, std::int64_t vocab) {
  Values d_table(index(vocab * width), 0.0);
  for (std::size_t row = 0; row < tokens.size(); ++row) {
    for (std::int64_t i = 0; i < width; ++i) {
      d_table[index(tokens[row] * width + i)] += d_out[row * index(width) + index(i)];
    }
  }
  return d_table;
}

RmsNormResult rmsnorm(const Values& s, const Values& weight, double epsilon) {
  RmsNormResult result;
  result.out.resize(s.size());
  const std::size_t width = weight.size();
  for (std::size_t begin = 0; begin < s.size(); begin += width) {
    double squares = 0;
    for (std::size_t i = 0; i < width; ++i) squares += s[begin + i] * s[begin + i];
    const double inv_rms = 1 / std::sqrt(squares / static_cast<double>(width) + epsilon);
    result.inv_rms.push_back(inv_rms);
    for (std::size_t i = 0; i < width; ++i) result.out[begin + i] = s[begin + i] * inv_rms * weight[i];
  }
  return result;
}

RmsNormGradients rmsnorm_gradients(const Values& s, const Values& weight, double epsilon, const Values& d_out) {
  const RmsNormResult forward = rmsnorm(s, weight, epsilon);
  const std::size_t width = weight.size();
  RmsNormGradients gradients{Values(s.size()), Values(width, 0.0)};
  for (std::size_t begin = 0, row = 0; begin < s.size(); begin += width, ++row) {
    const double q = forward.inv_rms[row];
    double dot = 0;
    for (std::size_t i = 0; i < width; ++i) dot += d_out[begin + i] * weight[i] * s[begin + i];
    for (std::size_t i = 0; i < width; ++i) {
      gradients.d_s[begin + i] =
          d_out[begin + i] * weight[i] * q - s[begin + i] * dot * q * q * q / static_cast<double>(width);
      gradients.d_weight[i] += d_out[begin + i] * s[begin + i] * q;
    }
  }
  return gradients;
}

Values rope(const Values& x, std::int64_t rows, std::int64_t seq_len, std::int64_t heads, std::int64_t head_dim,
            bool inverse) {
  Values out(x.size());
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t head = 0; head < heads; ++head) {
      for (std::int64_t pair = 0; pair < head_dim / 2; ++pair) {
        const double angle = static_cast<double>(row % seq_len) *
                             std::pow(10000.0, -2.0 * static_cast<double>(pair) / static_cast<double>(head_dim)) *
                             (inverse ? -1 : 1);
        const std::size_t at = index((row * heads + head) * head_dim + 2 * pair);
        out[at] = x[at] * std::cos(angle) - x[at + 1] * std::sin(angle);
        out[at + 1] = x[at] * std::sin(angle) + x[at + 1] * std::cos(angle);
      }
    }
  }
  return out;
}

Values silu(const Values& x) {
  Values out;
  for (const double value : x) out.push_back(value * sigmoid(value));
  return out;
}

Values swiglu(const Values& gate, const Values& up) {
  Values out = silu(gate);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] *= up[i];
  return out;
}

SwigluGradients swiglu_gradients(const Values& gate, const Values& up, const Values& d_out) {
  SwigluGradients gradients;
  for (std::size_t i = 0; i < gate.size(); ++i) {
    const double s = sigmoid(gate[i]);
    gradients.d_gate.push_back(d_out[i] * up[i] * s * (1 + gate[i] * (1 - s)));
    gradients.d_up.push_back(d_out[i] * gate[i] * s);
  }
  return gradients;
}

CrossEntropyResult cross_entropy(const Values& logits, std::int64_t vocab, const Tokens& targets) {
  CrossEntropyResult result;
  for (std::size_t row = 0; row < targets.size(); ++row) {
    const auto begin = logits.begin() + static_cast<std::int64_t>(row) * vocab;
    const double largest = *std::max_element(begin, begin + vocab);
    double sum = 0;
    for (auto it = begin; it != begin + vocab; ++it) sum += std::exp(*it - largest);
    const double lse = largest + std::log(sum);
    result.lse.push_back(lse);
    result.losses.push_back(lse - begin[targets[row]]);
    for (std::int64_t i = 0; i < vocab; ++i) {
      result.d_logits.push_back(std::exp(begin[i] - lse) - (i == targets[row] ? 1.0 : 0.0));
    }
  }
  return result;
}

Values matmul(const MatmulProblem& p, const Values& a, const Values& b) {
  Values c(index(p.m * p.n), 0.0);
  for (std::int64_t i = 0; i < p.m; ++i) {
    for (std::int64_t j = 0; j < p.n; ++j) {
      double sum = 0;
      for (std::int64_t k = 0; k < p.k; ++k) {
        sum += a[index(p.transpose_a ? k * p.stride_a + i : i * p.stride_a + k)] *
               b[index(p.transpose_b ? j * p.stride_b + k : k * p.stride_b + j)];
      }
      c[index(i * p.n + j)] = sum;
    }
  }
  return c;
}

void adamw(AdamwHyperparameters h, double lr, int step, double scale, const Values& gradient, Values& w, Values& m,
           Values& v) {
  const auto beta1 = static_cast<double>(h.beta1), beta2 = static_cast<double>(h.beta2);
  const auto epsilon = static_cast<double>(h.epsilon), decay = static_cast<double>(h.weight_decay);
  const double c1 = 1 - std::pow(beta1, step), c2 = 1 - std::pow(beta2, step);
  for (std::size_t i = 0; i < w.size(); ++i) {
    const double g = gradient[i] * scale;
    m[i] = beta1 * m[i] + (1 - beta1) * g;
    v[i] = beta2 * v[i] + (1 - beta2) * g * g;
    if (h.definition == AdamwDefinition::torch) {
      w[i] -= lr * decay * w[i];
      w[i] -= lr / c1 * m[i] / (std::sqrt(v[i]) / std::sqrt(c2) + epsilon);
    } else {
      w[i] -= lr * std::sqrt(c2) / c1 * m[i] / (std::sqrt(v[i]) + epsilon);
      w[i] -= lr * decay * w[i];
    }
  }
}

}  // namespace warpmeter::layers::testing
