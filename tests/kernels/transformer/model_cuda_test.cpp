// The model on a GPU against the same model on the CPU: loss, logits, gradients, a step, and recorded graphs.
#include <cmath>

#include <gtest/gtest.h>

#include "kernels/attention/registry.hpp"
#include "kernels/layers/available.hpp"
#include "kernels/transformer/graph.hpp"
#include "kernels/transformer/model.hpp"
#include "tests/kernels/layers/device_array.hpp"

namespace warpmeter::transformer {
namespace {

using layers::testing::Values;

// Head dim 16, an odd vocabulary, rows that are no multiple of a tile.
constexpr ModelConfig kConfig{.vocab = 1003, .d_model = 64, .d_ff = 160, .layers = 3, .heads = 4};
constexpr std::int64_t kBatch = 3, kContext = 37;

class ModelCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU: " << cuda_unavailable_reason();
    if (!layers::available(DeviceKind::cuda)) GTEST_SKIP() << "this build has no model operations for CUDA";
    stream_ = std::make_unique<Stream>(Device::cuda());
    allocator_ = std::make_unique<CachingAllocator>(Device::cuda());
    cuda_ = {stream_->view(), allocator_.get()};
    for (std::int64_t i = 0; i < kBatch * kContext; ++i) {
      tokens_.push_back(static_cast<std::int32_t>(i * i * 5 % kConfig.vocab));
      targets_.push_back(static_cast<std::int32_t>((i * 211 + 3) % kConfig.vocab));
    }
  }

  std::unique_ptr<Model> model(const Context& context, std::string_view precision, Structure structure,
                               Recompute recompute = Recompute::none, bool try_candidates = true) {
    ModelOptions o;
    o.matmul.try_candidates = try_candidates;
    o.precision = *find_precision(precision);
    o.structure = structure;
    o.attention =
        attention::find_implementation(context.device().kind, structure == Structure::naive ? "naive" : "flash");
    o.recompute = recompute;
    o.batch = kBatch;
    o.context = kContext;
    auto result = std::make_unique<Model>(context, kConfig, o);
    result->initialize(3);
    result->set_batch(tokens_, targets_);
    result->prepare_training();
    return result;
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

  std::unique_ptr<Stream> stream_;
  std::unique_ptr<CachingAllocator> allocator_;
  Context cuda_;
  layers::testing::HostContext host_;
  std::vector<std::int32_t> tokens_, targets_;
};

TEST_F(ModelCuda, LossAndGradientsMatchTheCpu) {
  for (const Structure structure : {Structure::naive, Structure::fused}) {
    const auto reference = model(host_.context(), "fp32", structure);
    reference->forward();
    const auto logits = reference->logits();
    reference->forward_backward();
    const auto expected = gradients(*reference);
    struct Bound {
      const char* precision;
      double loss, share;
    };
    for (const Bound& bound : {Bound{"fp32", 1e-5, 2e-5}, Bound{"tf32", 0.01, 0.03}, Bound{"bf16", 0.05, 0.15},
                               Bound{"fp16", 0.01, 0.03}, Bound{"bf16_pure", 0.05, 0.15}}) {
      const auto subject = model(cuda_, bound.precision, structure);
      subject->forward();
      const auto got_logits = subject->logits();
      if (bound.loss < 1e-4) {
        EXPECT_TRUE(layers::testing::near(Values(got_logits.begin(), got_logits.end()),
                                          Values(logits.begin(), logits.end()), DType::fp32, 2e-5));
      }
      subject->forward_backward();
      EXPECT_NEAR(subject->loss(), reference->loss(), bound.loss) << bound.precision << " " << name(structure);
      const float scale = subject->step_state().loss_scale;
      const auto got = gradients(*subject);
      for (std::size_t p = 0; p < expected.size(); ++p) {
        double difference = 0, size = 0;
        for (std::size_t i = 0; i < expected[p].size(); ++i) {
          const double e = static_cast<double>(expected[p][i]);
          difference += std::pow(static_cast<double>(got[p][i] / scale) - e, 2);
          size += e * e;
        }
        EXPECT_LT(std::sqrt(difference / size), bound.share)
            << bound.precision << " " << name(structure) << " " << subject->layout().parameters()[p].name;
      }
    }
  }
}

TEST_F(ModelCuda, StepsMatchTheCpu) {
  for (const char* precision : {"fp32", "bf16", "fp16"}) {
    const auto reference = model(host_.context(), "fp32", Structure::fused);
    const auto subject = model(cuda_, precision, Structure::fused);
    for (int step = 0; step < 8; ++step) {
      for (Model* m : {reference.get(), subject.get()}) {
        m->forward_backward();
        m->optimizer_step();
      }
    }
    const bool exact = std::string_view(precision) == "fp32";
    EXPECT_NEAR(subject->loss(), reference->loss(), exact ? 1e-3 : 0.1) << precision;
    EXPECT_EQ(subject->step_state().step, 8);
  }
}

// Of candidates for a product a model takes the one that was fastest when it tried them: another model may have found
// another, whose sums are rounded otherwise. One model keeps to its choice.
TEST_F(ModelCuda, SameBitsOnEveryRun) {
  for (const char* precision : {"fp32", "bf16"}) {
    for (const Structure structure : {Structure::naive, Structure::fused}) {
      const auto make = [&] { return model(cuda_, precision, structure, Recompute::none, /*try_candidates=*/false); };
      const auto a = make(), b = make();
      for (Model* m : {a.get(), b.get()}) {
        m->forward_backward();
        m->optimizer_step();
      }
      EXPECT_TRUE(parameters(*a) == parameters(*b)) << precision << " " << name(structure);

      const auto tried = model(cuda_, precision, structure);
      tried->forward_backward();
      const auto first = gradients(*tried);
      tried->forward_backward();
      EXPECT_TRUE(gradients(*tried) == first) << precision << " " << name(structure);
    }
  }
}

TEST_F(ModelCuda, RecomputedBlocksGiveTheSameGradients) {
  const auto kept = model(cuda_, "bf16", Structure::fused, Recompute::none, /*try_candidates=*/false);
  const auto again = model(cuda_, "bf16", Structure::fused, Recompute::block, /*try_candidates=*/false);
  kept->forward_backward();
  again->forward_backward();
  EXPECT_EQ(kept->loss(), again->loss());
  EXPECT_EQ(kept->gradient(5), again->gradient(5));
}

// What runs beside the main stream in one, runs within it in the other.
TEST_F(ModelCuda, SideBySideIsOneAfterAnother) {
  struct OneByOne : OperationSink {
    void begin(const Operation&) override {}
    void end(const Operation&) override {}
  };
  for (const char* precision : {"fp32", "bf16"}) {
    const auto beside = model(cuda_, precision, Structure::fused), after = model(cuda_, precision, Structure::fused);
    for (int step = 0; step < 3; ++step) {
      beside->forward_backward();
      OneByOne sink;
      beside->set_sink(&sink);
      const auto got = gradients(*beside);
      beside->forward_backward();
      const auto expected = gradients(*beside);
      beside->set_sink(nullptr);
      EXPECT_EQ(got, expected) << precision;
    }
    // Squares taken layer by layer give the norm that one pass over all gradients gives.
    after->forward_backward();
    after->optimizer_step();
    beside->train_step();
    EXPECT_NEAR(beside->step_state().gradient_norm, after->step_state().gradient_norm,
                1e-3f * after->step_state().gradient_norm)
        << precision;
  }
}

TEST_F(ModelCuda, RecordedStepsAreTheSteps) {
  for (const char* precision : {"fp32", "bf16", "fp16"}) {
    const auto plain = model(cuda_, precision, Structure::fused);
    const auto recorded = model(cuda_, precision, Structure::fused);
    const auto step = [&](Model& m) { m.train_step(); };
    step(*plain);
    step(*recorded);
    const Graph graph(cuda_.stream, [&] { step(*recorded); });
    EXPECT_EQ(recorded->step_state().step, 1) << "recording runs nothing";
    for (int i = 0; i < 4; ++i) {
      step(*plain);
      graph.launch(cuda_.stream);
    }
    synchronize(cuda_.stream);
    EXPECT_EQ(recorded->step_state().step, 5);
    EXPECT_NEAR(recorded->loss(), plain->loss(), 2e-3 * std::abs(static_cast<double>(plain->loss()))) << precision;
    const auto norm = static_cast<double>(plain->step_state().gradient_norm);
    EXPECT_NEAR(recorded->step_state().gradient_norm, norm, 2e-2 * norm) << precision;
  }
}

// A recomputed block begins with a norm, which follows the main stream's wait for what was put aside.
TEST_F(ModelCuda, RecordedStepsOfRecomputedBlocksAreTheSteps) {
  for (const Structure structure : {Structure::naive, Structure::fused}) {
    const auto plain = model(cuda_, "bf16", structure, Recompute::block, /*try_candidates=*/false);
    const auto recorded = model(cuda_, "bf16", structure, Recompute::block, /*try_candidates=*/false);
    plain->train_step();
    recorded->train_step();
    const Graph graph(cuda_.stream, [&] { recorded->train_step(); });
    for (int i = 0; i < 8; ++i) {
      plain->train_step();
      graph.launch(cuda_.stream);
      synchronize(cuda_.stream);
      EXPECT_EQ(recorded->loss(), plain->loss()) << name(structure) << " step " << i;
    }
    EXPECT_TRUE(parameters(*recorded) == parameters(*plain)) << name(structure);
  }
}

TEST_F(ModelCuda, PredictedMemoryIsNearTheAllocators) {
  for (const Structure structure : {Structure::naive, Structure::fused}) {
    ModelOptions o;
    o.precision = *find_precision("bf16");
    o.structure = structure;
    o.attention = attention::find_implementation(DeviceKind::cuda, structure == Structure::naive ? "naive" : "flash");
    o.batch = 4;
    o.context = 256;
    const ModelConfig config = find_size("small")->config;
    const MemoryPrediction predicted = predict_memory(cuda_, config, o);
    ASSERT_EQ(allocator_->stats().current.allocated, 0u);
    Model subject(cuda_, config, o);
    subject.initialize(1);
    allocator_->reset_peak();
    subject.set_batch(std::vector<std::int32_t>(1024, 7), std::vector<std::int32_t>(1024, 9));
    subject.forward();
    const auto peak = [&] { return static_cast<double>(allocator_->stats().peak.allocated); };
    EXPECT_NEAR(peak() / static_cast<double>(predicted.forward.total()), 1, 0.05);
    subject.drop_logits();
    subject.prepare_training();
    allocator_->reset_peak();
    subject.forward_backward();
    subject.optimizer_step();
    EXPECT_NEAR(peak() / static_cast<double>(predicted.train_step.total()), 1, 0.05);
  }
}

}  // namespace
}  // namespace warpmeter::transformer
