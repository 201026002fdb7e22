// A model that is trained beside others: weights and gradients in memory of their owner's, gradients told of one by
// one and added up; frozen and tied parameters; optimizer's state for some parameters alone.
#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include "kernels/attention/registry.hpp"
#include "kernels/runtime/check.hpp"
#include "kernels/transformer/model.hpp"
#include "tests/kernels/layers/device_array.hpp"

namespace warpmeter::transformer {
namespace {

using Parameters = std::vector<std::vector<float>>;

constexpr ModelConfig kConfig{.vocab = 29, .d_model = 12, .d_ff = 20, .layers = 2, .heads = 3};
constexpr std::int64_t kBatch = 2, kContext = 7;

struct Recorder final : GradientObserver {
  std::vector<std::size_t> order;
  void gradient_ready(std::size_t parameter, StreamView) override { order.push_back(parameter); }
};

class ResidentGradients : public ::testing::TestWithParam<Structure> {
 protected:
  layers::testing::HostContext host_;

  ModelOptions options(std::int64_t batch = kBatch) const {
    ModelOptions o;
    o.precision = *find_precision("fp32");
    o.structure = GetParam();
    o.attention = attention::find_implementation(DeviceKind::cpu, "flash");
    o.batch = batch;
    o.context = kContext;
    return o;
  }
  static void set_batch(Model& model, std::int64_t first, std::int64_t batch) {
    std::vector<std::int32_t> tokens, targets;
    for (std::int64_t i = first * kContext; i < (first + batch) * kContext; ++i) {
      tokens.push_back(static_cast<std::int32_t>(i * i * 5 % kConfig.vocab));
      targets.push_back(static_cast<std::int32_t>((i * 11 + 3) % kConfig.vocab));
    }
    model.set_batch(tokens, targets);
  }
  static std::vector<std::int64_t> places(const Model& model) {
    std::vector<std::int64_t> all;
    for (const Parameter& p : model.layout().parameters()) all.push_back(p.offset);
    return all;
  }
  static Parameters parameters(const Model& model) {
    Parameters all;
    for (std::size_t i = 0; i < model.layout().parameters().size(); ++i) all.push_back(model.parameter(i));
    return all;
  }
  static Parameters gradients(const Model& model) {
    Parameters all;
    for (std::size_t i = 0; i < model.layout().parameters().size(); ++i) all.push_back(model.gradient(i));
    return all;
  }
};

TEST_P(ResidentGradients, AreTheSameBitsAndToldOfInReverse) {
  Model plain(host_.context(), kConfig, options());
  Model model(host_.context(), kConfig, options());
  std::vector<float> memory(static_cast<std::size_t>(model.layout().elements()), NAN);
  Recorder recorder;
  for (Model* m : {&plain, &model}) {
    m->initialize(3);
    set_batch(*m, 0, kBatch);
    if (m == &model) {
      m->reside_gradients(memory.data(), places(*m));
      m->observe_gradients(&recorder);
    }
    m->prepare_training();
    m->forward_backward();
  }
  EXPECT_EQ(gradients(model), gradients(plain));
  EXPECT_FALSE(std::isnan(memory[static_cast<std::size_t>(model.layout().head())]));
  // Each once. What the naive block finishes in another order is within its block.
  std::vector<std::size_t> sorted = recorder.order;
  std::sort(sorted.rbegin(), sorted.rend());
  std::vector<std::size_t> all(model.layout().parameters().size());
  std::iota(all.rbegin(), all.rend(), std::size_t{0});
  EXPECT_EQ(sorted, all);
  if (GetParam() == Structure::fused) {
    EXPECT_EQ(recorder.order,
              (std::vector<std::size_t>{20, 19, 18, 17, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0}));
  }
  plain.optimizer_step();
  model.optimizer_step();
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto here = model.parameter(i), there = plain.parameter(i);
    for (std::size_t k = 0; k < here.size(); ++k) EXPECT_NEAR(here[k], there[k], 1e-6f) << i;  // norms may round apart
  }
}

TEST_P(ResidentGradients, WeightsResideToo) {
  const auto allocated = [&] { return host_.context().allocator->stats().current.allocated; };
  const std::size_t none = allocated();
  Model plain(host_.context(), kConfig, options());
  const std::size_t one = allocated();
  ModelOptions elsewhere = options();
  elsewhere.resident_weights = true;
  Model model(host_.context(), kConfig, elsewhere);
  const std::size_t both = allocated();
  EXPECT_THROW(model.initialize(3), CheckError) << "there is no place for them yet";
  ASSERT_EQ(model.weight_bytes(), static_cast<std::size_t>(model.layout().elements()) * sizeof(float));
  const auto charged = [&](Model& m) { return m.memory().current()[MemoryKind::parameters]; };
  EXPECT_EQ(charged(plain) - charged(model), Memory::rounded(model.weight_bytes()));
  EXPECT_EQ((one - none) - (both - one), Memory::rounded(model.weight_bytes()));
  std::vector<float> memory(static_cast<std::size_t>(model.layout().elements()), NAN);
  model.reside_weights(memory.data());
  EXPECT_THROW(model.reside_weights(memory.data()), CheckError);
  EXPECT_EQ(memory, std::vector<float>(memory.size(), 0.0f));
  for (Model* m : {&plain, &model}) {
    m->initialize(3);
    set_batch(*m, 0, kBatch);
    m->prepare_training();
    m->train_step();
  }
  EXPECT_EQ(parameters(model), parameters(plain));
  const WeightArray head =
      model.weights_of(model.layout().parameters().size() - 1, model.layout().parameters().size() - 1);
  EXPECT_EQ(head.data, memory.data() + model.layout().head());
  EXPECT_EQ(memory[static_cast<std::size_t>(model.layout().head())], parameters(plain).back().front());
}

TEST_P(ResidentGradients, MicroBatchesAddUpToTheWhole) {
  Model whole(host_.context(), kConfig, options(3 * kBatch));
  ModelOptions parts = options();
  parts.micro_batches = 3;
  Model model(host_.context(), kConfig, parts);
  std::vector<float> memory(static_cast<std::size_t>(model.layout().elements()), NAN);
  model.reside_gradients(memory.data(), places(model));
  for (Model* m : {&whole, &model}) {
    m->initialize(3);
    m->prepare_training();
  }
  set_batch(whole, 0, 3 * kBatch);
  whole.forward_backward();
  for (std::int64_t part = 0; part < 3; ++part) {
    set_batch(model, part * kBatch, kBatch);
    part == 0 ? model.forward_backward() : model.accumulate();
  }
  for (std::size_t i = 0; i < model.layout().parameters().size(); ++i) {
    const auto here = model.gradient(i), there = whole.gradient(i);
    float largest = 0;
    for (const float g : there) largest = std::max(largest, std::abs(g));
    for (std::size_t k = 0; k < here.size(); ++k) ASSERT_NEAR(here[k], there[k], 2e-6f * largest) << i << " " << k;
  }
}

TEST_P(ResidentGradients, FrozenParametersStayAndTheOthersDoNotNotice) {
  ModelOptions some = options();
  some.max_norm = 0;  // clipping would tell the others
  ModelOptions none = some;
  some.frozen.assign(21, false);
  const std::vector<std::size_t> frozen{0, 2, 6, 8, 12, 20};  // embedding, q, norm 2, w3, v, head
  for (const std::size_t i : frozen) some.frozen[i] = true;
  Model all(host_.context(), kConfig, none), model(host_.context(), kConfig, some);
  Recorder recorder;
  model.observe_gradients(&recorder);
  for (Model* m : {&all, &model}) {
    m->initialize(3);
    m->prepare_training();
    set_batch(*m, 0, kBatch);
  }
  const Parameters before = parameters(model);
  for (Model* m : {&all, &model}) {
    m->forward_backward();
    m->optimizer_step();
  }
  const Parameters after = parameters(model), expected = parameters(all);
  for (std::size_t i = 0; i < after.size(); ++i) {
    EXPECT_EQ(after[i], some.frozen[i] ? before[i] : expected[i]) << i;
    EXPECT_NE(expected[i], before[i]);
    EXPECT_EQ(std::count(recorder.order.begin(), recorder.order.end(), i), some.frozen[i] ? 0 : 1) << i;
  }
}

TEST_P(ResidentGradients, ATiedHeadHasBothGradients) {
  ModelConfig tied = kConfig;
  tied.tied_head = true;
  EXPECT_EQ(tied.parameters(), kConfig.parameters() - kConfig.vocab * kConfig.d_model);
  EXPECT_EQ(tied.tensors(), kConfig.tensors() - 1);
  Model two(host_.context(), kConfig, options()), one(host_.context(), tied, options());
  EXPECT_EQ(static_cast<std::int64_t>(one.layout().parameters().size()), tied.tensors());
  one.initialize(3);
  for (std::size_t i = 0; i < 20; ++i) two.set_parameter(i, one.parameter(i));
  two.set_parameter(20, one.parameter(0));
  Recorder recorder;
  one.observe_gradients(&recorder);
  for (Model* m : {&one, &two}) {
    m->prepare_training();
    set_batch(*m, 0, kBatch);
    m->forward_backward();
  }
  EXPECT_EQ(one.loss(), two.loss());
  const auto both = one.gradient(0), embedding = two.gradient(0), head = two.gradient(20);
  for (std::size_t k = 0; k < both.size(); ++k) EXPECT_NEAR(both[k], embedding[k] + head[k], 1e-6f);
  for (std::size_t i = 1; i < 20; ++i) EXPECT_EQ(one.gradient(i), two.gradient(i)) << i;
  EXPECT_EQ(recorder.order.back(), 0U);
  EXPECT_EQ(recorder.order.size(), 20U);
  const auto before = one.parameter(0);
  one.optimizer_step();
  EXPECT_NE(one.parameter(0), before);
}

TEST_P(ResidentGradients, TwoHalvesOfTheStateMakeTheWhole) {
  for (const char* precision : {"fp32", "bf16", "fp16"}) {
    ModelOptions o = options();
    o.precision = *find_precision(precision);
    Model whole(host_.context(), kConfig, o);
    std::vector<std::unique_ptr<Model>> halves;
    std::vector<std::vector<float>> memory(3);
    std::vector<std::size_t> own[2];
    std::vector<Model*> models{&whole};
    for (std::size_t i = 0; i < 21; ++i) own[i * 7 % 3 == 0].push_back(i);
    for (int half = 0; half < 2; ++half) {
      halves.push_back(std::make_unique<Model>(host_.context(), kConfig, o));
      models.push_back(halves.back().get());
    }
    for (std::size_t m = 0; m < models.size(); ++m) {
      memory[m].assign(static_cast<std::size_t>(whole.layout().elements()), 0);
      models[m]->initialize(3);
      models[m]->reside_gradients(memory[m].data(), places(whole));
      if (m > 0) {
        std::vector<bool> kept(21, false);
        for (const std::size_t i : own[m - 1]) kept[i] = true;
        models[m]->keep_state_of(kept);
      }
      models[m]->prepare_training();
      set_batch(*models[m], 0, kBatch);
      models[m]->forward_backward();
      models[m]->begin_update();
      std::vector<std::size_t> mine(21);
      std::iota(mine.begin(), mine.end(), std::size_t{0});
      models[m]->update(m == 0 ? mine : own[m - 1]);
      models[m]->end_update();
    }
    for (int half = 0; half < 2; ++half) {
      for (const std::size_t i : own[half]) {
        EXPECT_EQ(halves[static_cast<std::size_t>(half)]->parameter(i), whole.parameter(i)) << precision << " " << i;
      }
      EXPECT_LT(halves[static_cast<std::size_t>(half)]->memory().current().total(), whole.memory().current().total());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Structures, ResidentGradients, ::testing::Values(Structure::naive, Structure::fused),
                         [](const auto& structure) { return std::string(name(structure.param)); });

}  // namespace
}  // namespace warpmeter::transformer
