// The weights and their optimizer by themselves: values and masters, one step against fp64, its parts, and what is left
// out.
#include "kernels/transformer/optimizer.hpp"

#include <cmath>

#include <gtest/gtest.h>

#include "tests/kernels/layers/device_array.hpp"

namespace warpmeter::transformer {
namespace {

// Of 12 parameters three, wq, wk and wv, are neighbours, and so are w1 and w3.
constexpr ModelConfig kConfig{.vocab = 5, .d_model = 8, .d_ff = 12, .layers = 1, .heads = 2};

/// A value that 16 bits do not hold, of any element of any parameter.
float value_of(std::size_t parameter, std::size_t i) {
  return 0.1f * static_cast<float>(parameter + 1) + 0.001f * static_cast<float>(i);
}
float gradient_of(std::size_t parameter, std::size_t i) {
  return std::sin(static_cast<float>(7 * parameter + i) + 0.5f);
}

struct Fixture {
  explicit Fixture(std::string_view precision, std::vector<bool> frozen = {},
                   const OptimizerOptions& options = OptimizerOptions())
      : memory(host.context()),
        layout(kConfig),
        executor(memory, nullptr),
        gradients(layout, std::move(frozen)),
        weights(memory, layout, *find_precision(precision)),
        optimizer(executor, layout, weights, gradients, with(options, precision)) {
    for (std::size_t i = 0; i < layout.parameters().size(); ++i) {
      std::vector<float> values(static_cast<std::size_t>(layout.parameters()[i].count()));
      for (std::size_t k = 0; k < values.size(); ++k) values[k] = value_of(i, k);
      weights.set(i, values);
    }
  }
  static OptimizerOptions with(OptimizerOptions options, std::string_view precision) {
    options.precision = *find_precision(precision);
    return options;
  }
  /// What a backward would leave: fp32.
  void fill_gradients() {
    for (std::size_t group = 0; group <= gradients.head_group(); ++group) gradients.take(memory, group, DType::fp32);
    for (std::size_t i = 0; i < layout.parameters().size(); ++i) {
      const Parameter& p = layout.parameters()[i];
      auto* const g = static_cast<float*>(gradients.at(p.offset));
      for (std::size_t k = 0; k < static_cast<std::size_t>(p.count()); ++k) g[k] = gradient_of(i, k);
    }
  }
  [[nodiscard]] std::vector<std::vector<float>> values() const {
    std::vector<std::vector<float>> all;
    for (std::size_t i = 0; i < layout.parameters().size(); ++i) all.push_back(weights.value(i));
    return all;
  }

  layers::testing::HostContext host;
  Memory memory;
  ParameterLayout layout;
  Executor executor;
  Gradients gradients;
  Weights weights;
  Optimizer optimizer;
};

TEST(Weights, MastersHoldFp32AndOneGivenUpLeavesItsRounding) {
  for (const char* precision : {"fp32", "bf16", "fp16", "bf16_pure"}) {
    SCOPED_TRACE(precision);
    Fixture f(precision);
    const bool exact = std::string_view(precision) != "bf16_pure";
    EXPECT_EQ(f.weights.value(3)[5] == value_of(3, 5), exact);
    EXPECT_EQ(f.weights.arrays().size(), find_precision(precision)->master_bytes() != 0 ? 2u : 1u);
    const WeightArray range = f.weights.range(2, 4);
    EXPECT_EQ(range.data, f.weights.at(f.layout.parameters()[2].offset));
    EXPECT_EQ(range.count, 3 * 64);

    std::vector<bool> kept(f.layout.parameters().size(), false);
    kept[3] = kept[9] = true;
    f.weights.keep_masters(StatePlaces(f.layout, kept));
    EXPECT_EQ(f.weights.value(3)[5] == value_of(3, 5), exact);
    EXPECT_EQ(f.weights.value(9)[1] == value_of(9, 1), exact);
    const float rounded = f.weights.value(4)[5];
    EXPECT_EQ(rounded == value_of(4, 5), std::string_view(precision) == "fp32");
    EXPECT_NEAR(rounded, value_of(4, 5), 0x1p-8f * value_of(4, 5));
  }
}

TEST(Weights, InitialValuesHaveTheirDeviationsAndRepeat) {
  Fixture f("fp32"), again("fp32");
  f.weights.initialize(3, /*tied_head=*/false);
  again.weights.initialize(3, false);
  EXPECT_EQ(f.values(), again.values());
  EXPECT_EQ(f.weights.value(1), std::vector<float>(8, 1.0f)) << "a norm's";
  const auto deviation = [](const std::vector<float>& values) {
    double sum = 0;
    for (const float v : values) sum += static_cast<double>(v) * v;
    return std::sqrt(sum / static_cast<double>(values.size()));
  };
  EXPECT_NEAR(deviation(f.weights.value(0)), 1.0, 0.35) << "40 of the embedding's";
  EXPECT_NEAR(deviation(f.weights.value(7)), std::sqrt(2.0 / 20), 0.06) << "96 of w1's";
  again.weights.initialize(3, /*tied_head=*/true);
  EXPECT_NEAR(again.weights.value(0)[4], f.weights.value(0)[4] * static_cast<float>(std::sqrt(2.0 / 13)), 1e-6f);
}

TEST(Optimizer, AStepIsAdamwOfClippedGradients) {
  for (const bool merged : {true, false}) {
    OptimizerOptions options;
    options.learning_rate = 0.01f;
    options.merged = merged;
    Fixture f("fp32", {}, options);
    EXPECT_FALSE(f.optimizer.prepared());
    f.optimizer.prepare();
    f.optimizer.reset();
    const auto before = f.values();
    f.fill_gradients();
    f.optimizer.step();
    EXPECT_FALSE(f.gradients.available(0)) << "given back";
    double squares = 0;
    for (std::size_t i = 0; i < before.size(); ++i) {
      for (std::size_t k = 0; k < before[i].size(); ++k) squares += std::pow(static_cast<double>(gradient_of(i, k)), 2);
    }
    const double norm = std::sqrt(squares);
    EXPECT_NEAR(f.optimizer.state().gradient_norm, norm, 1e-5 * norm);
    EXPECT_EQ(f.optimizer.state().step, 1);
    for (std::size_t i = 0; i < before.size(); ++i) {
      const std::vector<float> after = f.weights.value(i);
      for (std::size_t k = 0; k < after.size(); ++k) {
        const double g = static_cast<double>(gradient_of(i, k)) / (norm + 1e-6);
        // The first step: both moments corrected are g and g^2.
        const double w = static_cast<double>(before[i][k]) * (1 - 0.01 * 0.01);
        ASSERT_NEAR(after[k], w - 0.01 * g / (std::abs(g) + 1e-8), 1e-6) << merged << " " << i << " " << k;
      }
    }
  }
}

TEST(Optimizer, PartsMakeTheStepAndFrozenParametersStay) {
  std::vector<bool> frozen(12, false);
  frozen[3] = frozen[8] = true;
  for (const char* precision : {"fp32", "bf16", "fp16"}) {
    Fixture whole(precision, frozen), parts(precision, frozen);
    for (Fixture* f : {&whole, &parts}) {
      f->optimizer.prepare();
      f->optimizer.reset();
      f->optimizer.set_learning_rate(0.02f);
      f->fill_gradients();
    }
    const auto before = whole.values();
    whole.optimizer.step();
    parts.optimizer.begin_update();
    parts.optimizer.update(std::vector<std::size_t>{0, 1, 2, 7, 8});
    parts.optimizer.update(std::vector<std::size_t>{3, 4, 5, 6, 9, 10, 11});
    parts.optimizer.end_update();
    const auto after = whole.values();
    EXPECT_EQ(parts.values(), after) << precision;
    for (std::size_t i = 0; i < after.size(); ++i) EXPECT_EQ(after[i] == before[i], frozen[i]) << precision << " " << i;
    EXPECT_EQ(whole.optimizer.state().learning_rate, 0.02f);
  }
}

TEST(Optimizer, AnOverflowChangesTheScaleAlone) {
  Fixture f("fp16");
  f.optimizer.prepare();
  f.optimizer.reset();
  EXPECT_EQ(f.optimizer.state().loss_scale, kInitialLossScale);
  const auto before = f.values();
  f.fill_gradients();
  static_cast<float*>(f.gradients.at(f.layout.parameters()[6].offset))[2] = INFINITY;
  f.optimizer.step();
  EXPECT_EQ(f.values(), before);
  EXPECT_EQ(f.optimizer.state().loss_scale, kInitialLossScale / 2);
  EXPECT_EQ(f.optimizer.state().skipped, 1);
  EXPECT_EQ(f.optimizer.state().step, 0);
}

TEST(Optimizer, PlanningTakesNothingAndAccountsAsMuch) {
  Fixture real("bf16");
  real.optimizer.prepare();
  Memory memory(real.host.context(), /*planning=*/true);
  Executor executor(memory, nullptr);
  Gradients gradients(real.layout);
  const PrecisionPolicy& precision = *find_precision("bf16");
  Weights weights(memory, real.layout, precision);
  Optimizer optimizer(executor, real.layout, weights, gradients, {.precision = precision});
  optimizer.prepare();
  optimizer.reset();
  optimizer.step();
  for (const MemoryKind kind : {MemoryKind::parameters, MemoryKind::optimizer}) {
    EXPECT_EQ(memory.current()[kind], real.memory.current()[kind]) << name(kind);
    EXPECT_GT(memory.current()[kind], 0u);
  }
  EXPECT_EQ(weights.at(0), nullptr);
  EXPECT_EQ(optimizer.device_state(), nullptr);
}

}  // namespace
}  // namespace warpmeter::transformer
