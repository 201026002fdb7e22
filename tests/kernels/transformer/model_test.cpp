// The whole model: against fp64 and central differences, its structures and precisions against one another, its memory
// account against the allocator.
#include "kernels/transformer/model.hpp"

#include <cmath>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "kernels/attention/registry.hpp"
#include "tests/kernels/transformer/reference_model.hpp"

namespace warpmeter::transformer {
namespace {

using layers::testing::Tokens;
using layers::testing::Values;

constexpr ModelConfig kSmall{.vocab = 29, .d_model = 12, .d_ff = 20, .layers = 2, .heads = 3};
constexpr std::int64_t kBatch = 2, kContext = 7;

class ModelTest : public ::testing::Test {
 protected:
  layers::testing::HostContext host_;
  Context context_ = host_.context();
  Tokens tokens_, targets_;

  void SetUp() override {
    for (std::int64_t i = 0; i < kBatch * kContext; ++i) {
      tokens_.push_back(static_cast<std::int32_t>(i * i * 5 % kSmall.vocab));
      targets_.push_back(static_cast<std::int32_t>((i * 11 + 3) % kSmall.vocab));
    }
  }

  static ModelOptions options(std::string_view precision, Structure structure, std::string_view attention = "") {
    ModelOptions o;
    o.precision = *find_precision(precision);
    o.structure = structure;
    if (attention.empty()) attention = structure == Structure::naive ? "naive" : "flash";
    o.attention = attention::find_implementation(DeviceKind::cpu, attention);
    o.batch = kBatch;
    o.context = kContext;
    return o;
  }

  std::unique_ptr<Model> ready(const ModelOptions& o) {
    auto model = std::make_unique<Model>(context_, kSmall, o);
    model->initialize(3);
    model->set_batch(tokens_, targets_);
    model->prepare_training();
    return model;
  }

  static std::vector<std::vector<float>> gradients(const Model& model) {
    std::vector<std::vector<float>> all;
    for (std::size_t i = 0; i < model.layout().parameters().size(); ++i) all.push_back(model.gradient(i));
    return all;
  }
  static std::vector<std::vector<float>> parameters(const Model& model) {
    std::vector<std::vector<float>> all;
    for (std::size_t i = 0; i < model.layout().parameters().size(); ++i) all.push_back(model.parameter(i));
    return all;
  }
  static testing::ReferenceModel reference(const Model& model) {
    testing::ReferenceModel r{kSmall, kBatch, kContext, {}};
    for (const auto& values : parameters(model)) r.parameters.emplace_back(values.begin(), values.end());
    return r;
  }
};

TEST_F(ModelTest, LossLogitsAndGradientsMatchFp64AndDifferences) {
  for (const Structure structure : {Structure::naive, Structure::fused}) {
    const auto model = ready(options("fp32", structure));
    testing::ReferenceModel expected = reference(*model);
    model->forward();
    const std::vector<float> logits = model->logits();
    EXPECT_TRUE(
        layers::testing::near(Values(logits.begin(), logits.end()), expected.logits(tokens_), DType::fp32, 1e-5));
    model->forward_backward();
    EXPECT_NEAR(model->loss(), expected.loss(tokens_, targets_), 1e-5);

    constexpr double kStep = 1e-5;
    for (std::size_t p = 0; p < expected.parameters.size(); ++p) {
      const std::vector<float> gradient = model->gradient(p);
      double largest = 0;
      for (const float g : gradient) largest = std::max(largest, std::abs(static_cast<double>(g)));
      ASSERT_GT(largest, 0) << model->layout().parameters()[p].name;
      Values& values = expected.parameters[p];
      // A handful of every parameter; of the embedding, those of a token that occurs.
      const std::size_t first = p == 0 ? static_cast<std::size_t>(tokens_[1] * kSmall.d_model) : 0;
      for (std::size_t i = first; i < values.size(); i += values.size() / 5 + 1) {
        const double kept = values[i];
        values[i] = kept + kStep;
        const double above = expected.loss(tokens_, targets_);
        values[i] = kept - kStep;
        const double below = expected.loss(tokens_, targets_);
        values[i] = kept;
        EXPECT_NEAR(static_cast<double>(gradient[i]), (above - below) / (2 * kStep), 1e-5 * largest + 1e-9)
            << model->layout().parameters()[p].name << " " << i;
      }
    }
  }
}

TEST_F(ModelTest, RecomputedBlocksGiveTheSameBits) {
  for (const Structure structure : {Structure::naive, Structure::fused}) {
    ModelOptions o = options("fp32", structure);
    const auto kept = ready(o);
    kept->forward_backward();
    o.recompute = Recompute::block;
    const auto recomputed = ready(o);
    recomputed->forward_backward();
    EXPECT_EQ(gradients(*kept), gradients(*recomputed));
    EXPECT_EQ(kept->loss(), recomputed->loss());
  }
}

TEST_F(ModelTest, EveryAttentionGivesTheSameModel) {
  const auto naive = ready(options("fp32", Structure::fused, "naive"));
  naive->forward_backward();
  for (const attention::Implementation* implementation : attention::implementations(DeviceKind::cpu)) {
    const auto model = ready(options("fp32", Structure::fused, implementation->name()));
    model->forward_backward();
    EXPECT_NEAR(model->loss(), naive->loss(), 1e-5) << implementation->name();
    const auto expected = gradients(*naive), got = gradients(*model);
    for (std::size_t p = 0; p < expected.size(); ++p) {
      EXPECT_TRUE(layers::testing::near(Values(got[p].begin(), got[p].end()),
                                        Values(expected[p].begin(), expected[p].end()), DType::fp32, 2e-5))
          << implementation->name() << " " << p;
    }
  }
}

TEST_F(ModelTest, MixedPrecisionStaysNearFp32) {
  const auto exact = ready(options("fp32", Structure::fused));
  exact->forward_backward();
  const auto expected = gradients(*exact);
  for (const char* precision : {"bf16", "fp16", "bf16_pure"}) {
    for (const Structure structure : {Structure::naive, Structure::fused}) {
      const auto model = ready(options(precision, structure));
      model->forward_backward();
      const bool half = std::string_view(precision) == "fp16";
      EXPECT_NEAR(model->loss(), exact->loss(), half ? 0.01 : 0.05) << precision;
      const float scale = model->step_state().loss_scale;
      EXPECT_EQ(scale, half ? kInitialLossScale : 1.0f);
      const auto got = gradients(*model);
      for (std::size_t p = 0; p < expected.size(); ++p) {
        double difference = 0, size = 0;
        for (std::size_t i = 0; i < expected[p].size(); ++i) {
          const double e = static_cast<double>(expected[p][i]);
          difference += std::pow(static_cast<double>(got[p][i] / scale) - e, 2);
          size += e * e;
        }
        EXPECT_LT(std::sqrt(difference / size), half ? 0.02 : 0.15) << precision << " " << p;
      }
    }
  }
}

TEST_F(ModelTest, MastersKeepTheExactWeights) {
  const auto exact = ready(options("fp32", Structure::fused));
  for (const char* precision : {"bf16", "fp16"}) {
    EXPECT_EQ(parameters(*ready(options(precision, Structure::fused))), parameters(*exact)) << precision;
  }
}

TEST_F(ModelTest, StepsLowerTheLossAlikeInBothStructures) {
  std::vector<float> losses;
  for (const Structure structure : {Structure::naive, Structure::fused}) {
    ModelOptions o = options("fp32", structure);
    o.learning_rate = 1e-2f;
    const auto model = ready(o);
    model->forward_backward();
    const float first = model->loss();
    for (int step = 0; step < 30; ++step) {
      model->optimizer_step();
      model->forward_backward();
    }
    EXPECT_LT(model->loss(), 0.3f * first);
    EXPECT_EQ(model->step_state().step, 30);
    EXPECT_EQ(model->step_state().skipped, 0);
    losses.push_back(model->loss());
  }
  EXPECT_NEAR(losses[0], losses[1], 0.02 * static_cast<double>(losses[0]));
}

TEST_F(ModelTest, OverflowSkipsTheStepAndHalvesTheScale) {
  const auto model = ready(options("fp16", Structure::fused));
  layers::StepState state = model->step_state();
  state.loss_scale = 0x1p30f;
  model->set_step_state(state);
  const auto before = parameters(*model);
  model->forward_backward();
  model->optimizer_step();
  EXPECT_EQ(parameters(*model), before);
  state = model->step_state();
  EXPECT_EQ(state.skipped, 1);
  EXPECT_EQ(state.step, 0);
  EXPECT_EQ(state.loss_scale, 0x1p29f);
  state.loss_scale = 1024;
  model->set_step_state(state);
  model->forward_backward();
  model->optimizer_step();
  EXPECT_NE(parameters(*model), before);
  EXPECT_EQ(model->step_state().step, 1);
}

TEST_F(ModelTest, SameSeedSameBits) {
  const auto a = ready(options("bf16", Structure::fused)), b = ready(options("bf16", Structure::fused));
  for (Model* model : {a.get(), b.get()}) {
    model->forward_backward();
    model->optimizer_step();
  }
  EXPECT_EQ(parameters(*a), parameters(*b));
}

TEST_F(ModelTest, PredictedMemoryIsWhatTheAllocatorSees) {
  for (const char* precision : {"fp32", "bf16", "fp16"}) {
    for (const Structure structure : {Structure::naive, Structure::fused}) {
      for (const Recompute recompute : {Recompute::none, Recompute::block}) {
        ModelOptions o = options(precision, structure);
        o.recompute = recompute;
        const MemoryPrediction predicted = predict_memory(context_, kSmall, o);
        CachingAllocator& allocator = *context_.allocator;
        ASSERT_EQ(allocator.stats().current.allocated, 0u) << "planning takes nothing";
        {
          Model model(context_, kSmall, o);
          model.initialize(1);
          model.set_batch(tokens_, targets_);
          allocator.reset_peak();
          model.forward();
          EXPECT_EQ(allocator.stats().peak.allocated, predicted.forward.total()) << precision;
          model.drop_logits();
          model.prepare_training();
          allocator.reset_peak();
          model.memory().reset_peak();
          model.forward_backward();
          EXPECT_EQ(allocator.stats().peak.allocated, predicted.forward_backward.total()) << precision;
          EXPECT_EQ(model.memory().peak().bytes, predicted.forward_backward.bytes);
          model.optimizer_step();
          EXPECT_EQ(allocator.stats().peak.allocated, predicted.train_step.total()) << precision;
        }
        EXPECT_EQ(allocator.stats().current.allocated, 0u);
      }
    }
  }
}

TEST_F(ModelTest, HistoryNamesPhasesLayersAndWhatMemoryIsFor) {
  CachingAllocator& allocator = *context_.allocator;
  const auto model = ready(options("fp32", Structure::fused));
  allocator.start_history(100'000, true);
  model->forward_backward();
  model->optimizer_step();
  allocator.stop_history();
  const MemoryHistory history = allocator.history();
  std::vector<std::string> phases;
  for (const MemoryPhase& phase : history.phases) {
    if (!phase.name.empty()) phases.push_back(phase.name);
  }
  EXPECT_EQ(phases, (std::vector<std::string>{"FWD_STEP", "LAYER_0", "LAYER_1", "BWD_STEP", "LAYER_1", "LAYER_0",
                                              "OPTIM_STEP"}));
  std::map<std::string, std::set<std::string>> phase_of;
  for (const MemoryEvent& event : history.events) {
    if (event.action != MemoryAction::alloc || event.frames.empty()) continue;
    phase_of[std::string(event.category) + ": " + std::string(event.frames.front().name)].insert(
        history.phases[event.phase].name);
  }
  EXPECT_EQ(phase_of["activations: q, k, v"], (std::set<std::string>{"LAYER_0", "LAYER_1"}));
  EXPECT_EQ(phase_of["logits: logits"], (std::set<std::string>{"FWD_STEP"}));
  EXPECT_EQ(phase_of["gradients: gradients"], (std::set<std::string>{"BWD_STEP", "LAYER_0", "LAYER_1"}));
  EXPECT_EQ(phase_of["workspace: workspace"], (std::set<std::string>{"BWD_STEP", "LAYER_0", "LAYER_1", "OPTIM_STEP"}));
}

TEST_F(ModelTest, OperationsAddUpToTheModelsFlops) {
  struct Sum : OperationSink {
    double matmul = 0, attention = 0;
    std::int64_t open = 0, count = 0;
    void begin(const Operation& o) override {
      ++open;
      ++count;
      if (o.kind == OperationKind::matmul) matmul += o.flops;
      if (o.kind == OperationKind::attention) attention += o.flops;
    }
    void end(const Operation&) override { --open; }
  };
  for (const Structure structure : {Structure::naive, Structure::fused}) {
    Model model(context_, kSmall, options("fp32", structure), true);
    Sum forward;
    model.set_sink(&forward);
    model.forward();
    EXPECT_DOUBLE_EQ(forward.matmul + forward.attention, kSmall.forward_flops(kBatch, kContext));
    EXPECT_EQ(forward.open, 0);
    model.prepare_training();
    Sum both;
    model.set_sink(&both);
    model.forward_backward();
    EXPECT_DOUBLE_EQ(both.matmul, 3 * forward.matmul);
    EXPECT_DOUBLE_EQ(both.attention, 3.5 * forward.attention);
  }
}

}  // namespace
}  // namespace warpmeter::transformer
