#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/layers/adamw.hpp"
#include "kernels/layers/gradient_norm.hpp"
#include "kernels/layers/step_state.hpp"
#include "kernels/transformer/executor.hpp"
#include "kernels/transformer/gradients.hpp"
#include "kernels/transformer/state_places.hpp"
#include "kernels/transformer/weights.hpp"

namespace warpmeter::transformer {

struct OptimizerOptions {
  PrecisionPolicy precision{};
  layers::AdamwHyperparameters adamw{};
  float learning_rate = 1e-3f;
  float max_norm = 1.0f;  ///< of all gradients together; 0: no clipping
  /// Parameters that lie next to one another in every array are updated as one tensor, and the update scales gradients
  /// as it reads them. Else tensor by tensor after a pass that scales them in place, as eager frameworks do.
  bool merged = true;
};

/// AdamW with clipping by the norm of all gradients together, and with loss scaling where the precision has it: the
/// moments of a model's parameters, the scalars of a step, and the step itself, in parts or at once. Work is enqueued
/// on the executor's stream, an operation for each pass; what allocates throws OutOfMemory. Frozen parameters are left
/// out everywhere. What it is made with is borrowed.
class Optimizer {
 public:
  Optimizer(Executor& executor, const ParameterLayout& layout, Weights& weights, Gradients& gradients,
            const OptimizerOptions& options);

  /// Keeps the state (moments, masters) of these parameters only, by index: the others can no longer be updated here.
  /// Before prepare().
  void keep_state_of(const std::vector<bool>& kept);
  /// Takes memory for moments and scalars. Once.
  void prepare();
  [[nodiscard]] bool prepared() const { return state_.defined(); }
  /// Moments zero, scalars as at the start of training. Waits.
  void reset();

  /// A step: the norm of all gradients, the updates of all parameters, the step's end, which gives the gradients back.
  void step();
  void begin_update();
  /// Of these parameters, ascending.
  void update(std::span<const std::size_t> parameters);
  void end_update();
  /// Whether begin_update() scales the gradients in place, so that another optimizer must not.
  [[nodiscard]] bool scales_gradients_in_place() const { return !options_.merged; }

  /// The step's scalars where they are, on the device; null before prepare() and in a planning memory.
  [[nodiscard]] const layers::StepState* device_state() const {
    return static_cast<const layers::StepState*>(state_.data());
  }
  // Both wait.
  [[nodiscard]] layers::StepState state() const;
  void set_state(const layers::StepState& state);
  /// Of the steps from now on; those recorded in a graph follow it too. Waits.
  void set_learning_rate(float learning_rate);

 private:
  /// Parameters next to one another: what a pass may take as one tensor.
  struct Run {
    std::int64_t offset = 0, count = 0;
  };
  [[nodiscard]] const std::vector<Parameter>& parameters() const { return layout_.parameters(); }
  [[nodiscard]] layers::StepState* scalars() const { return static_cast<layers::StepState*>(state_.data()); }
  [[nodiscard]] std::vector<layers::GradientTensor> gradients_for_norm() const;
  /// Trained parameters of those that are asked for, by index; neighbours in every array together where passes are
  /// merged.
  template <class Wanted>
  [[nodiscard]] std::vector<Run> runs_of(Wanted&& wanted) const;
  void update_runs(const std::vector<Run>& runs);

  Executor& executor_;
  const ParameterLayout& layout_;
  Weights& weights_;
  Gradients& gradients_;
  OptimizerOptions options_;
  StatePlaces places_;
  Array first_moments_, second_moments_, state_;
};

}  // namespace warpmeter::transformer
