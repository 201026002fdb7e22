#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace warpmeter::transformer {

/// Dimensions of a GPT-style model: token embedding, pre-norm blocks (RMSNorm, causal attention with RoPE, RMSNorm,
/// SwiGLU), final norm, untied head; no biases.
struct ModelConfig {
  std::int64_t vocab = 10'000;
  std::int64_t d_model = 64;
  std::int64_t d_ff = 256;
  std::int64_t layers = 2;
  std::int64_t heads = 4;
  bool tied_head = false;  ///< the head multiplies by the embedding's weights: one parameter for both

  [[nodiscard]] std::int64_t head_dim() const { return d_model / heads; }
  /// Weights of all parameters together.
  [[nodiscard]] std::int64_t parameters() const;
  /// Tensors that hold them: 9 a layer and 3 more, 2 with a tied head.
  [[nodiscard]] std::int64_t tensors() const { return 9 * layers + (tied_head ? 2 : 3); }

  /// Model FLOPs of one forward over `batch` sequences of `context` tokens: 2 a weight of every linear layer and token
  /// (head included, embedding not), and the attention's 4 * heads * head_dim a visible pair. Recomputation and
  /// element-wise work do not count.
  [[nodiscard]] double forward_flops(std::int64_t batch, std::int64_t context) const;
  /// Three forwards: each product of the forward has two in the backward.
  [[nodiscard]] double step_flops(std::int64_t batch, std::int64_t context) const {
    return 3 * forward_flops(batch, context);
  }

  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

/// "" when a model can be built, else which dimension is wrong and why ("heads 3 do not divide d_model 64").
[[nodiscard]] std::string invalid_reason(const ModelConfig& config);

/// A size by name. The 7B is the notes' label.
struct NamedSize {
  std::string_view name;
  ModelConfig config;
};
/// tiny, small, medium, large, xl, 7B.
[[nodiscard]] std::span<const NamedSize> named_sizes();
[[nodiscard]] const NamedSize* find_size(std::string_view name);

}  // namespace warpmeter::transformer
