// Clipping, AdamW in its two definitions, split masters and loss scaling.
#include <cmath>
#include <cstring>
#include <limits>

#include <gtest/gtest.h>

#include "kernels/layers/adamw.hpp"
#include "kernels/layers/gradient_norm.hpp"
#include "tests/kernels/layers/reference.hpp"

namespace warpmeter::layers {
namespace {

using testing::DeviceArray;
using testing::near;
using testing::normal;
using testing::stored;
using testing::Values;

class Optimizer : public ::testing::Test {
 protected:
  testing::HostContext host_;
  Context context_ = host_.context();

  void norm(std::span<const GradientTensor> gradients, DType dtype, float most, StepState& state) {
    GradientNorm arguments{.gradients = gradients, .dtype = dtype, .max_norm = most, .state = &state};
    const Buffer workspace(context_, workspace_bytes(Device::cpu(), arguments));
    arguments.workspace = workspace.data();
    gradient_norm(context_, arguments);
  }
};

TEST_F(Optimizer, NormOverAllTensorsClipsAndUnscales) {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    const Values a = stored(normal(70'000, 1), dtype), b = stored(normal(3, 2), dtype);
    const DeviceArray pa(context_, a, dtype), pb(context_, b, dtype);
    double squares = 0;
    for (const double value : a) squares += value * value;
    for (const double value : b) squares += value * value;
    const GradientTensor tensors[] = {{pa.data(), 70'000}, {pb.data(), 3}};
    StepState state;
    state.loss_scale = 8;
    norm(tensors, dtype, 2.0f, state);
    const double expected = std::sqrt(squares) / 8;
    EXPECT_NEAR(state.gradient_norm, expected, 1e-5 * expected);
    EXPECT_NEAR(state.update_scale, 2 / (expected + 1e-6) / 8, 1e-7);
    EXPECT_EQ(state.overflow, 0);

    scale_gradients(context_, {.gradients = tensors, .dtype = dtype, .state = &state});
    Values scaled = b;
    for (double& value : scaled) value *= static_cast<double>(state.update_scale);
    EXPECT_TRUE(near(pb.values(), scaled, dtype));

    state.loss_scale = 1;
    norm(tensors, dtype, 1e6f, state);
    EXPECT_EQ(state.update_scale, 1.0f) << "short gradients stay as they are";
    norm(tensors, dtype, 0, state);
    EXPECT_EQ(state.update_scale, 1.0f) << "0: no clipping";
  }
}

TEST_F(Optimizer, OverflowLeavesWeightsAloneAndLowersTheScale) {
  const DeviceArray gradient(context_, Values{1, std::numeric_limits<double>::infinity()}, DType::fp32);
  const DeviceArray w(context_, Values{3, 4}, DType::fp32), m(context_, Values{0, 0}, DType::fp32),
      v(context_, Values{0, 0}, DType::fp32);
  const GradientTensor gradients[] = {{gradient.data(), 2}};
  StepState state;
  state.loss_scale = 1024;
  norm(gradients, DType::fp32, 1.0f, state);
  EXPECT_EQ(state.overflow, 1);
  const AdamwTensor tensors[] = {
      {.weight = w.data(), .gradient = gradient.data(), .m = m.data(), .v = v.data(), .count = 2}};
  adamw(context_, {.tensors = tensors, .state = &state});
  EXPECT_EQ(w.values(), (Values{3, 4}));
  EXPECT_EQ(m.values(), (Values{0, 0}));
  finish_step(context_, {.state = &state, .scaling = true});
  EXPECT_EQ(state.loss_scale, 512.0f);
  EXPECT_EQ(state.skipped, 1);
  EXPECT_EQ(state.step, 0);
  state.overflow = 0;
  for (int i = 0; i < 3; ++i) finish_step(context_, {.state = &state, .scaling = true, .growth_interval = 3});
  EXPECT_EQ(state.loss_scale, 1024.0f);
  EXPECT_EQ(state.good_steps, 0);
  EXPECT_EQ(state.step, 3);
}

TEST_F(Optimizer, AdamwFollowsBothDefinitionsInEveryType) {
  struct Types {
    DType weight;
    MasterKind master;
    DType gradient, moment;
  };
  const std::int64_t count = 5001;
  for (const AdamwDefinition definition : {AdamwDefinition::torch, AdamwDefinition::course}) {
    for (const Types& types : {Types{DType::fp32, MasterKind::none, DType::fp32, DType::fp32},
                               Types{DType::bf16, MasterKind::correction, DType::fp32, DType::fp32},
                               Types{DType::bf16, MasterKind::correction, DType::bf16, DType::fp32},
                               Types{DType::bf16, MasterKind::copy, DType::fp32, DType::fp32},
                               Types{DType::fp16, MasterKind::copy, DType::fp32, DType::fp32},
                               Types{DType::fp16, MasterKind::copy, DType::fp16, DType::fp32},
                               Types{DType::bf16, MasterKind::none, DType::bf16, DType::bf16}}) {
      AdamwHyperparameters hyper{.definition = definition, .weight_decay = 0.1f};
      Values w = stored(normal(count, 1), DType::fp32);
      const DeviceArray initial(context_, w, DType::fp32), weight(context_, count, types.weight);
      const DType master_type = types.master == MasterKind::copy ? DType::fp32 : DType::bf16;  // 4 or 2 bytes
      const DeviceArray master(context_, count, master_type);
      set_weights(context_, {.count = count,
                             .values = initial.as<float>(),
                             .weight_dtype = types.weight,
                             .master_kind = types.master,
                             .weight = weight.data(),
                             .master = master.data()});
      if (types.master == MasterKind::none) w = stored(w, types.weight);
      Values m(w.size(), 0.0), v(w.size(), 0.0);
      const DeviceArray pm(context_, m, types.moment), pv(context_, v, types.moment);
      StepState state;
      state.learning_rate = 0.01f;
      state.update_scale = 0.5f;
      for (int step = 1; step <= 4; ++step) {
        const Values g = stored(normal(count, static_cast<std::uint64_t>(10 + step), 0.1), types.gradient);
        const DeviceArray gradient(context_, g, types.gradient);
        const AdamwTensor tensors[] = {{weight.data(), master.data(), gradient.data(), pm.data(), pv.data(), count}};
        adamw(context_, {.tensors = tensors,
                         .weight_dtype = types.weight,
                         .master = types.master,
                         .gradient_dtype = types.gradient,
                         .moment_dtype = types.moment,
                         .hyperparameters = hyper,
                         .state = &state});
        finish_step(context_, {.state = &state});
        testing::adamw(hyper, static_cast<double>(state.learning_rate), step, 0.5, g, w, m, v);
        if (types.moment == DType::bf16) {  // each step reads what the last one stored
          EXPECT_TRUE(near(pm.values(), m, DType::bf16));
          EXPECT_TRUE(near(weight.values(), w, types.weight, 1e-4));
          w = weight.values();
          m = pm.values();
          v = pv.values();
        }
      }
      if (types.moment == DType::bf16) continue;
      EXPECT_TRUE(near(pm.values(), m, DType::fp32));
      EXPECT_TRUE(near(pv.values(), v, DType::fp32));
      if (types.master == MasterKind::copy) {
        EXPECT_TRUE(near(master.values(), w, DType::fp32));
      }
      if (types.master == MasterKind::correction) {
        const auto halves = weight.bytes(), rest = master.bytes();
        Values joined;
        for (std::int64_t i = 0; i < count; ++i) {
          std::uint16_t half;
          std::int16_t correction;
          std::memcpy(&half, halves.data() + i * 2, 2);
          std::memcpy(&correction, rest.data() + i * 2, 2);
          const std::uint32_t bits = join_master(half, correction);
          float value;
          std::memcpy(&value, &bits, 4);
          joined.push_back(static_cast<double>(value));
        }
        EXPECT_TRUE(near(joined, w, DType::fp32));
      }
      EXPECT_TRUE(near(weight.values(), w, types.weight));
    }
  }
}

TEST_F(Optimizer, TorchAndCourseDiffer) {
  Values torch{1.0}, course{1.0}, m1{0.0}, m2{0.0}, v1{0.0}, v2{0.0};
  AdamwHyperparameters hyper{.epsilon = 1e-2f, .weight_decay = 0.1f};
  testing::adamw(hyper, 0.1, 1, 1.0, {0.1}, torch, m1, v1);
  hyper.definition = AdamwDefinition::course;
  testing::adamw(hyper, 0.1, 1, 1.0, {0.1}, course, m2, v2);
  // torch: 0.99 - 0.1 * 0.1 / (0.1 + 0.01); course: (1 - 0.1 * sqrt(0.001)/0.1 * 0.01/(0.1 sqrt(0.001) + 0.01)) * 0.99
  EXPECT_NEAR(torch[0], 0.99 - 0.01 / 0.11, 1e-6);
  const double root = std::sqrt(0.001);
  EXPECT_NEAR(course[0], (1 - root * 0.01 / (0.1 * root + 0.01)) * 0.99, 1e-6);
}

TEST(SplitMaster, JoinsToTheSameBits) {
  const std::uint32_t patterns[] = {0,           0x80000000u, 0x3F800000u, 0x3F808000u, 0x3F818000u, 0x3F807FFFu,
                                    0xBF808001u, 0x00000001u, 0x007FFFFFu, 0x7F7FFFFFu, 0x12345678u};
  for (const std::uint32_t bits : patterns) {
    const std::uint16_t weight = split_weight(bits);
    EXPECT_EQ(join_master(weight, split_correction(bits)), bits) << std::hex << bits;
    // The half is a nearest one: no further from the master than half of its own last place.
    EXPECT_LE(std::abs(static_cast<int>(split_correction(bits))), 0x8000);
  }
  for (std::uint32_t bits = 0; bits < 0x7F000000u; bits += 65521) {
    ASSERT_EQ(join_master(split_weight(bits), split_correction(bits)), bits);
  }
}

}  // namespace
}  // namespace warpmeter::layers
