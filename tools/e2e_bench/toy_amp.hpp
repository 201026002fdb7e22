#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/transformer/precision.hpp"

namespace warpmeter::e2e_bench {

/// The size of --dtypes that is no transformer: the course's toy for mixed precision, a linear layer 20 -> 10 without
/// bias, ReLU, LayerNorm, a linear layer 10 -> 5 without bias, cross-entropy. Nothing runs it.
inline constexpr std::string_view kToyAmp = "toy_amp";

/// Something that a step of the toy stores or computes.
struct ToyValue {
  std::string phase;  ///< "stored", "forward", "backward"
  std::string name;
  DType type;
};

/// In a step's order. As under torch.autocast: products give the type that they multiply in, what follows element by
/// element keeps its operand's, LayerNorm and the loss compute and give fp32, and a gradient has the type of what it is
/// the gradient of, a weight's that of the weight. With low-precision weights alone (bf16_pure) LayerNorm gives theirs.
/// Source: PyTorch, "Automatic Mixed Precision package", CUDA ops that autocast to float16 and to float32.
[[nodiscard]] std::vector<ToyValue> toy_amp_values(const transformer::PrecisionPolicy& precision);

}  // namespace warpmeter::e2e_bench
