// The same weights and tokens in PyTorch (scripts/peers/pytorch_exchange wrote them): loss and every gradient.
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "kernels/attention/registry.hpp"
#include "kernels/transformer/model.hpp"
#include "tests/kernels/layers/device_array.hpp"

namespace warpmeter::transformer {
namespace {

using layers::testing::Values;

struct Exchange {
  ModelConfig config;
  std::int64_t batch = 0, context = 0;
  std::vector<std::int32_t> tokens, targets;
  double loss = 0;
  std::vector<std::string> names;
  std::vector<std::vector<float>> weights;
  std::vector<Values> gradients;
};

template <class T>
std::vector<T> rest_of(std::istringstream& line) {
  std::vector<T> values;
  T value;
  while (line >> value) values.push_back(value);
  return values;
}

Exchange read_exchange(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.is_open()) << path;
  Exchange exchange;
  std::string text;
  while (std::getline(file, text)) {
    std::istringstream line(text);
    std::string word, name;
    line >> word;
    if (word == "vocab") {
      ModelConfig& c = exchange.config;
      line >> c.vocab >> word >> c.d_model >> word >> c.d_ff >> word >> c.layers >> word >> c.heads;
      line >> word >> exchange.batch >> word >> exchange.context;
    } else if (word == "tokens") {
      exchange.tokens = rest_of<std::int32_t>(line);
    } else if (word == "targets") {
      exchange.targets = rest_of<std::int32_t>(line);
    } else if (word == "loss") {
      line >> exchange.loss;
    } else if (word == "weight") {
      line >> name;
      exchange.names.push_back(name);
      exchange.weights.push_back(rest_of<float>(line));
    } else if (word == "gradient") {
      line >> name;
      exchange.gradients.push_back(rest_of<double>(line));
    }
  }
  return exchange;
}

TEST(Exchange, LossAndEveryGradientAreThoseOfPyTorch) {
  const Exchange exchange = read_exchange(WM_EXCHANGE_FILE);
  ASSERT_EQ(exchange.names.size(), static_cast<std::size_t>(exchange.config.tensors()));
  layers::testing::HostContext host;
  for (const Structure structure : {Structure::naive, Structure::fused}) {
    ModelOptions options;
    options.precision = *find_precision("fp32");
    options.structure = structure;
    options.attention =
        attention::find_implementation(DeviceKind::cpu, structure == Structure::naive ? "naive" : "flash");
    options.batch = exchange.batch;
    options.context = exchange.context;
    Model model(host.context(), exchange.config, options);
    for (std::size_t i = 0; i < exchange.names.size(); ++i) {
      ASSERT_EQ(model.layout().parameters()[i].name, exchange.names[i]);
      model.set_parameter(i, exchange.weights[i]);
    }
    model.set_batch(exchange.tokens, exchange.targets);
    model.prepare_training();
    model.forward_backward();
    EXPECT_NEAR(static_cast<double>(model.loss()), exchange.loss, 1e-4 * exchange.loss);
    for (std::size_t i = 0; i < exchange.names.size(); ++i) {
      const std::vector<float> gradient = model.gradient(i);
      EXPECT_TRUE(
          layers::testing::near(Values(gradient.begin(), gradient.end()), exchange.gradients[i], DType::fp32, 1e-4))
          << name(structure) << " " << exchange.names[i];
    }
  }
}

}  // namespace
}  // namespace warpmeter::transformer
