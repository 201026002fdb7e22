#pragma once

#include <cstdint>
#include <vector>

#include "kernels/transformer/config.hpp"
#include "tests/kernels/layers/reference.hpp"

namespace warpmeter::transformer::testing {

using layers::testing::Tokens;
using layers::testing::Values;

/// The whole model in plain fp64 loops. `parameters` are in ParameterLayout's order.
struct ReferenceModel {
  ModelConfig config;
  std::int64_t batch = 1, context = 1;
  std::vector<Values> parameters;

  [[nodiscard]] Values logits(const Tokens& tokens) const;
  /// Mean cross-entropy.
  [[nodiscard]] double loss(const Tokens& tokens, const Tokens& targets) const;
};

}  // namespace warpmeter::transformer::testing
