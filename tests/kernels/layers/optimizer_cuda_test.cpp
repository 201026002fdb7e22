// Clipping, AdamW in its two definitions, split masters and loss scaling on CUDA.
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/layers/adamw.hpp"
#include "kernels/layers/gradient_norm.hpp"
#include "tests/kernels/layers/cuda_fixture.hpp"

namespace warpmeter::layers {
namespace {

using testing::CudaTest;
using testing::DeviceArray;
using testing::DeviceState;
using testing::near;
using testing::normal;
using testing::stored;
using testing::Values;

class CudaOptimizer : public CudaTest {
 protected:
  void norm(std::span<const GradientTensor> gradients, DType dtype, float most, const DeviceState& state) const {
    GradientNorm arguments{.gradients = gradients, .dtype = dtype, .max_norm = most, .state = state.data()};
    const DeviceArray scratch = workspace(arguments);
    arguments.workspace = scratch.data();
    gradient_norm(context_, arguments);
  }
};

TEST_F(CudaOptimizer, NormOverAllTensorsClipsAndUnscales) {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    // More tensors than a launch takes, of odd sizes, one of them off the 16-byte boundary.
    const std::int64_t many = 1200;
    const Values a = stored(normal(70'001, 1), dtype), b = stored(normal(3 * many, 2), dtype);
    const DeviceArray pa = array(a, dtype), pb = array(b, dtype);
    double squares = 0;
    for (std::size_t i = 1; i < a.size(); ++i) squares += a[i] * a[i];
    for (const double value : b) squares += value * value;
    std::vector<GradientTensor> tensors = {{pa.as<char>() + size_of(dtype), 70'000}, {nullptr, 0}};
    for (std::int64_t i = 0; i < many; ++i) {
      tensors.push_back({pb.as<char>() + static_cast<std::size_t>(3 * i) * size_of(dtype), 3});
    }
    StepState scalars;
    scalars.loss_scale = 8;
    const DeviceState state(context_, scalars);
    norm(tensors, dtype, 2.0f, state);
    const StepState first = state.get();
    const double expected = std::sqrt(squares) / 8;
    EXPECT_NEAR(first.gradient_norm, expected, 1e-5 * expected);
    EXPECT_NEAR(first.update_scale, 2 / (expected + 1e-6) / 8, 1e-7);
    EXPECT_EQ(first.overflow, 0);
    norm(tensors, dtype, 2.0f, state);
    EXPECT_EQ(state.get().gradient_norm, first.gradient_norm) << "the same bits twice";

    scale_gradients(context_, {.gradients = tensors, .dtype = dtype, .state = state.data()});
    const auto factor = static_cast<double>(first.update_scale);
    Values scaled_a = a, scaled_b = b;
    for (std::size_t i = 1; i < a.size(); ++i) scaled_a[i] *= factor;
    for (double& value : scaled_b) value *= factor;
    EXPECT_TRUE(near(pa.values(), scaled_a, dtype));
    EXPECT_TRUE(near(pb.values(), scaled_b, dtype));

    scalars.loss_scale = 1;
    state.set(scalars);
    norm(tensors, dtype, 1e6f, state);
    EXPECT_EQ(state.get().update_scale, 1.0f) << "short gradients stay as they are";
    norm(tensors, dtype, 0, state);
    EXPECT_EQ(state.get().update_scale, 1.0f) << "0: no clipping";
  }
}

TEST_F(CudaOptimizer, OverflowLeavesWeightsAloneAndLowersTheScale) {
  const DeviceArray gradient = array({1, std::numeric_limits<double>::infinity()}, DType::fp32);
  const DeviceArray w = array({3, 4}, DType::fp32), m = array({0, 0}, DType::fp32), v = array({0, 0}, DType::fp32);
  const GradientTensor gradients[] = {{gradient.data(), 2}};
  StepState scalars;
  scalars.loss_scale = 1024;
  const DeviceState state(context_, scalars);
  norm(gradients, DType::fp32, 1.0f, state);
  EXPECT_EQ(state.get().overflow, 1);
  const AdamwTensor tensors[] = {
      {.weight = w.data(), .gradient = gradient.data(), .m = m.data(), .v = v.data(), .count = 2}};
  adamw(context_, {.tensors = tensors, .state = state.data()});
  EXPECT_EQ(w.values(), (Values{3, 4}));
  EXPECT_EQ(m.values(), (Values{0, 0}));
  finish_step(context_, {.state = state.data(), .scaling = true});
  scalars = state.get();
  EXPECT_EQ(scalars.loss_scale, 512.0f);
  EXPECT_EQ(scalars.skipped, 1);
  EXPECT_EQ(scalars.step, 0);
  scalars.overflow = 0;
  state.set(scalars);
  for (int i = 0; i < 3; ++i) {
    finish_step(context_, {.state = state.data(), .scaling = true, .growth_interval = 3});
  }
  scalars = state.get();
  EXPECT_EQ(scalars.loss_scale, 1024.0f);
  EXPECT_EQ(scalars.good_steps, 0);
  EXPECT_EQ(scalars.step, 3);
}

TEST_F(CudaOptimizer, AdamwFollowsBothDefinitionsInEveryType) {
  struct Types {
    DType weight;
    MasterKind master;
    DType gradient, moment;
  };
  // The first tensor spans chunks and ends odd; the second begins off the boundary where elements have two bytes.
  const std::int64_t count = 40'001, split = 40'000 - 4097;
  for (const AdamwDefinition definition : {AdamwDefinition::torch, AdamwDefinition::course}) {
    for (const Types& types : {Types{DType::fp32, MasterKind::none, DType::fp32, DType::fp32},
                               Types{DType::fp32, MasterKind::none, DType::fp32, DType::bf16},
                               Types{DType::bf16, MasterKind::correction, DType::fp32, DType::fp32},
                               Types{DType::bf16, MasterKind::correction, DType::bf16, DType::fp32},
                               Types{DType::bf16, MasterKind::copy, DType::fp32, DType::fp32},
                               Types{DType::fp16, MasterKind::copy, DType::fp32, DType::fp32},
                               Types{DType::fp16, MasterKind::copy, DType::fp16, DType::fp32},
                               Types{DType::fp16, MasterKind::none, DType::fp16, DType::fp32},
                               Types{DType::bf16, MasterKind::none, DType::bf16, DType::bf16}}) {
      SCOPED_TRACE(std::string(name(types.weight)) + ", master " + std::to_string(static_cast<int>(types.master)) +
                   ", gradients " + std::string(name(types.gradient)) + ", moments " + std::string(name(types.moment)));
      const AdamwHyperparameters hyper{.definition = definition, .weight_decay = 0.1f};
      Values w = stored(normal(count, 1), DType::fp32);
      const DeviceArray initial = array(w, DType::fp32), weight = empty(count, types.weight);
      const DType master_type = types.master == MasterKind::copy ? DType::fp32 : DType::bf16;  // 4 or 2 bytes
      const DeviceArray master = empty(count, master_type);
      set_weights(context_, {.count = count,
                             .values = initial.as<float>(),
                             .weight_dtype = types.weight,
                             .master_kind = types.master,
                             .weight = weight.data(),
                             .master = master.data()});
      if (types.master == MasterKind::none) w = stored(w, types.weight);
      EXPECT_TRUE(near(weight.values(), w, types.weight));
      Values m(w.size(), 0.0), v(w.size(), 0.0);
      const DeviceArray pm = array(m, types.moment), pv = array(v, types.moment);
      StepState scalars;
      scalars.learning_rate = 0.01f;
      scalars.update_scale = 0.5f;
      const DeviceState state(context_, scalars);
      // What is rounded where it is stored: each step reads what the last one left.
      const bool rounded = types.moment == DType::bf16 || (types.master == MasterKind::none && is_16bit(types.weight));
      for (int step = 1; step <= 4; ++step) {
        const Values g = stored(normal(count, static_cast<std::uint64_t>(10 + step), 0.1), types.gradient);
        const DeviceArray gradient = array(g, types.gradient);
        const auto tensor = [&](std::int64_t begin, std::int64_t length) {
          const auto at = [&](const DeviceArray& a, DType dtype) {
            return a.as<char>() + static_cast<std::size_t>(begin) * size_of(dtype);
          };
          return AdamwTensor{at(weight, types.weight), at(master, master_type), at(gradient, types.gradient),
                             at(pm, types.moment),     at(pv, types.moment),    length};
        };
        const AdamwTensor tensors[] = {tensor(0, split), tensor(split, count - split)};
        adamw(context_, {.tensors = tensors,
                         .weight_dtype = types.weight,
                         .master = types.master,
                         .gradient_dtype = types.gradient,
                         .moment_dtype = types.moment,
                         .hyperparameters = hyper,
                         .state = state.data()});
        finish_step(context_, {.state = state.data()});
        testing::adamw(hyper, static_cast<double>(scalars.learning_rate), step, 0.5, g, w, m, v);
        if (rounded) {
          EXPECT_TRUE(near(pm.values(), m, types.moment));
          EXPECT_TRUE(near(pv.values(), v, types.moment));
          EXPECT_TRUE(near(weight.values(), w, types.weight, 1e-4));
          w = weight.values();
          m = pm.values();
          v = pv.values();
        }
      }
      EXPECT_EQ(state.get().step, 4);
      if (rounded) continue;
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

/// More tensors than one launch's parameters hold: each gets its own update.
TEST_F(CudaOptimizer, AdamwOverManyTensors) {
  const std::int64_t many = 700, each = 5;
  const DeviceArray w = array(Values(many * each, 1.0), DType::fp32), g = array(Values(many * each, 2.0), DType::fp32);
  const DeviceArray m = array(Values(many * each, 0.0), DType::fp32), v = array(Values(many * each, 0.0), DType::fp32);
  std::vector<AdamwTensor> tensors;
  for (std::int64_t i = 0; i < many; ++i) {
    const auto at = [&](const DeviceArray& a) { return a.as<float>() + i * each; };
    tensors.push_back({.weight = at(w), .gradient = at(g), .m = at(m), .v = at(v), .count = each});
  }
  const DeviceState state(context_);
  adamw(context_, {.tensors = tensors, .state = state.data()});
  Values expected(many * each, 1.0), m_expected(many * each, 0.0), v_expected(many * each, 0.0);
  testing::adamw({}, 1e-3, 1, 1.0, Values(many * each, 2.0), expected, m_expected, v_expected);
  EXPECT_TRUE(near(w.values(), expected, DType::fp32));
  EXPECT_TRUE(near(v.values(), v_expected, DType::fp32));
}

/// A master whose bf16 half was rounded up: the correction is negative.
TEST_F(CudaOptimizer, SplitWeightsJoinToTheSameBits) {
  const Values values = {0, 1, -1, 1.00390625, 1.005859375, 1.003906130790710449, -1.00390636920928955, 1e-40, 3e38};
  const DeviceArray initial = array(values, DType::fp32);
  const auto count = static_cast<std::int64_t>(values.size());
  const DeviceArray weight = empty(count, DType::bf16), master = empty(count, DType::bf16);
  set_weights(context_, {.count = count,
                         .values = initial.as<float>(),
                         .weight_dtype = DType::bf16,
                         .master_kind = MasterKind::correction,
                         .weight = weight.data(),
                         .master = master.data()});
  const auto halves = weight.bytes(), rest = master.bytes(), whole = initial.bytes();
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint16_t half;
    std::int16_t correction;
    std::uint32_t bits;
    std::memcpy(&half, halves.data() + i * 2, 2);
    std::memcpy(&correction, rest.data() + i * 2, 2);
    std::memcpy(&bits, whole.data() + i * 4, 4);
    EXPECT_EQ(join_master(half, correction), bits) << i;
    EXPECT_EQ(half, split_weight(bits)) << i;
  }
}

}  // namespace
}  // namespace warpmeter::layers
