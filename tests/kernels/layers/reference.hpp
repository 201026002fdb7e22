#pragma once

#include <cstdint>
#include <vector>

#include "kernels/layers/adamw.hpp"
#include "kernels/layers/matmul.hpp"
#include "tests/kernels/layers/device_array.hpp"

/// Every operation in plain fp64 loops: what both devices are held against. All matrices dense, rows x width.
namespace warpmeter::layers::testing {

using Tokens = std::vector<std::int32_t>;

[[nodiscard]] Values embedding(const Values& table, std::int64_t width, const Tokens& tokens);
[[nodiscard]] Values embedding_gradient(const Values& d_out, std::int64_t width, const Tokens& tokens,
                                        std::int64_t vocab);

struct RmsNormResult {
  Values out, inv_rms;
};
[[nodiscard]] RmsNormResult rmsnorm(const Values& s, const Values& weight, double epsilon);
struct RmsNormGradients {
  Values d_s, d_weight;
};
[[nodiscard]] RmsNormGradients rmsnorm_gradients(const Values& s, const Values& weight, double epsilon,
                                                 const Values& d_out);

/// rows x heads x head_dim; positions row mod seq_len.
[[nodiscard]] Values rope(const Values& x, std::int64_t rows, std::int64_t seq_len, std::int64_t heads,
                          std::int64_t head_dim, bool inverse);

[[nodiscard]] Values silu(const Values& x);
[[nodiscard]] Values swiglu(const Values& gate, const Values& up);
struct SwigluGradients {
  Values d_gate, d_up;
};
[[nodiscard]] SwigluGradients swiglu_gradients(const Values& gate, const Values& up, const Values& d_out);

struct CrossEntropyResult {
  Values losses, lse, d_logits;  ///< the gradient of the sum of losses
};
[[nodiscard]] CrossEntropyResult cross_entropy(const Values& logits, std::int64_t vocab, const Tokens& targets);

/// op(A) op(B) with the problem's strides.
[[nodiscard]] Values matmul(const MatmulProblem& problem, const Values& a, const Values& b);

/// One step of one tensor; m, v and w are updated.
void adamw(AdamwHyperparameters hyperparameters, double learning_rate, int step, double scale, const Values& gradient,
           Values& w, Values& m, Values& v);

}  // namespace warpmeter::layers::testing
