#include "tools/e2e_bench/toy_amp.hpp"

namespace warpmeter::e2e_bench {

namespace {

/// What an operation of the toy does with types.
enum class Rule { product, elementwise, norm, loss };

struct Layer {
  const char* name;  ///< of its output, too
  Rule rule;
  const char* weight;  ///< null: none
};
constexpr Layer kLayers[] = {
    {"FC1_MATMUL", Rule::product, "fc1.weight"},
    {"RELU", Rule::elementwise, nullptr},
    {"LAYER_NORM", Rule::norm, "ln.weight and ln.bias"},
    {"FC2_MATMUL", Rule::product, "fc2.weight"},
    {"CROSS_ENTROPY", Rule::loss, nullptr},
};

}  // namespace

std::vector<ToyValue> toy_amp_values(const transformer::PrecisionPolicy& p) {
  const bool mixed = p.master != layers::MasterKind::none;
  const DType weight = mixed ? DType::fp32 : p.activation;  // the parameter itself: with a master, the master
  const auto output = [&](Rule rule, DType input) {
    switch (rule) {
      case Rule::product:
        return p.activation;
      case Rule::elementwise:
        return input;
      case Rule::norm:
        return weight;
      case Rule::loss:
        return DType::fp32;
    }
    return input;
  };
  std::vector<ToyValue> values;
  for (const Layer& layer : kLayers) {
    if (layer.weight != nullptr) values.push_back({"stored", layer.weight, weight});
  }
  std::vector<DType> outputs;
  DType type = DType::fp32;  // the input's
  for (const Layer& layer : kLayers) {
    type = output(layer.rule, type);
    outputs.push_back(type);
    values.push_back({"forward", layer.name, type});
  }
  for (std::size_t i = std::size(kLayers); i-- > 0;) {
    values.push_back({"backward", std::string("gradient of ") + kLayers[i].name, outputs[i]});
    if (kLayers[i].weight == nullptr) continue;
    values.push_back({"backward", std::string("gradient of ") + kLayers[i].weight, p.gradient});
  }
  return values;
}

}  // namespace warpmeter::e2e_bench
