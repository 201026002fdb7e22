#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kernels/transformer/model.hpp"

namespace warpmeter::model_options {

/// `ModelSetup::size` of a model whose dimensions no named size has.
inline constexpr std::string_view kCustomSize = "custom";

/// A model and how it is run, as the tools' options name it.
struct ModelSetup {
  std::string size;  ///< "small", or kCustomSize
  transformer::ModelConfig model;
  transformer::PrecisionPolicy precision;
  transformer::Structure structure = transformer::Structure::fused;
  std::string attention;
  transformer::Recompute recompute = transformer::Recompute::none;
  layers::AdamwDefinition adamw = layers::AdamwDefinition::torch;
  std::int64_t batch = 4, context = 256;
  double learning_rate = 1e-3;

  [[nodiscard]] const attention::Implementation* implementation(Device device) const;
  [[nodiscard]] attention::AttentionProblem problem() const;
  /// `implementation` must be there.
  [[nodiscard]] transformer::ModelOptions options(Device device) const;
  [[nodiscard]] std::int64_t tokens() const { return batch * context; }
};

/// Why this build or device cannot run it.
[[nodiscard]] std::optional<std::string> unsupported(const ModelSetup& setup, Device device, bool training);

/// The tokens and targets that every run of these dimensions and seed has, on whatever device.
void set_random_batch(transformer::Model& model, const ModelSetup& setup, std::uint64_t seed);

}  // namespace warpmeter::model_options
