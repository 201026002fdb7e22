#include "kernels/transformer/optimizer.hpp"

#include <algorithm>
#include <cstddef>

#include "kernels/runtime/check.hpp"
#include "kernels/transformer/detail/host_copies.hpp"

namespace warpmeter::transformer {

namespace {

using layers::GradientTensor;
using layers::StepState;

}  // namespace

Optimizer::Optimizer(Executor& executor, const ParameterLayout& layout, Weights& weights, Gradients& gradients,
                     const OptimizerOptions& options)
    : executor_(executor),
      layout_(layout),
      weights_(weights),
      gradients_(gradients),
      options_(options),
      places_(layout) {}

void Optimizer::keep_state_of(const std::vector<bool>& kept) {
  WM_CHECK(!prepared() && kept.size() == parameters().size(), "before prepare_training()");
  std::vector<bool> trained = kept;
  for (std::size_t i = 0; i < trained.size(); ++i) trained[i] = kept[i] && gradients_.trainable(i);
  places_ = StatePlaces(layout_, trained);
  weights_.keep_masters(places_);
}

void Optimizer::prepare() {
  Memory& memory = executor_.memory();
  const DType moment = options_.precision.moment;
  first_moments_ = Array(memory, "first moments", places_.elements(), moment, MemoryKind::optimizer);
  second_moments_ = Array(memory, "second moments", places_.elements(), moment, MemoryKind::optimizer);
  state_ = Array(memory, "step state", sizeof(StepState), DType::uint8, MemoryKind::optimizer);
}

void Optimizer::reset() {
  if (executor_.memory().planning()) return;
  first_moments_.fill_zero();
  second_moments_.fill_zero();
  StepState state;
  state.learning_rate = options_.learning_rate;
  if (options_.precision.loss_scaling) state.loss_scale = kInitialLossScale;
  set_state(state);
}

void Optimizer::step() {
  begin_update();
  update_runs(runs_of([](std::size_t) { return true; }));
  end_update();
}

std::vector<GradientTensor> Optimizer::gradients_for_norm() const {
  std::vector<GradientTensor> list;
  if (gradients_.resident()) {
    // Not by what is kept here: the sums' order, and so the norm's bits, are every copy's.
    for (std::size_t i = 0; i < parameters().size(); ++i) {
      const Parameter& p = parameters()[i];
      if (gradients_.trainable(i)) list.push_back({gradients_.at(p.offset), p.count()});
    }
  } else {
    for (const Run& run : runs_of([](std::size_t) { return true; })) {
      list.push_back({gradients_.at(run.offset), run.count});
    }
  }
  return list;
}

void Optimizer::begin_update() {
  const DType dtype = options_.precision.gradient;
  const std::vector<GradientTensor> list = gradients_for_norm();
  layers::GradientNorm norm{.gradients = list, .dtype = dtype, .max_norm = options_.max_norm, .state = scalars()};
  executor_.apply_with_workspace("GRADIENT_NORM", OperationKind::optimizer, layers::gradient_norm, norm);
  if (scales_gradients_in_place()) {
    executor_.apply("SCALE_GRADIENTS", OperationKind::optimizer, layers::scale_gradients,
                    layers::ScaleGradients{.gradients = list, .dtype = dtype, .state = scalars()});
  }
}

template <class Wanted>
std::vector<Optimizer::Run> Optimizer::runs_of(Wanted&& wanted) const {
  std::vector<Run> runs;
  bool open = false;  // the one before is the end of the last run
  for (std::size_t i = 0; i < parameters().size(); ++i) {
    const Parameter& p = parameters()[i];
    if (!gradients_.trainable(i) || !wanted(i)) {
      open = false;
      continue;
    }
    const auto behind_the_one_before = [&] {
      const Parameter& before = parameters()[i - 1];
      return gradients_.follows(i) && before.offset + before.count() == p.offset &&
             places_.at(i - 1) + before.count() == places_.at(i);
    };
    if (options_.merged && open && behind_the_one_before()) {
      runs.back().count += p.count();
    } else {
      runs.push_back({p.offset, p.count()});
    }
    open = true;
  }
  return runs;
}

void Optimizer::update(std::span<const std::size_t> wanted) {
  update_runs(runs_of([&](std::size_t i) { return std::binary_search(wanted.begin(), wanted.end(), i); }));
}

void Optimizer::update_runs(const std::vector<Run>& runs) {
  const PrecisionPolicy& p = options_.precision;
  std::vector<layers::AdamwTensor> tensors;
  for (const Run& run : runs) {
    const std::size_t first = layout_.index_of(run.offset);
    const std::int64_t place = places_.at(first);
    WM_CHECK(place >= 0, "the parameter's state is kept here");
    tensors.push_back({weights_.at(run.offset), weights_.master(first), gradients_.at(run.offset),
                       first_moments_.at(place), second_moments_.at(place), run.count});
  }
  if (tensors.empty()) return;
  executor_.apply("ADAMW", OperationKind::optimizer, layers::adamw,
                  layers::AdamwArguments{.tensors = tensors,
                                         .weight_dtype = p.activation,
                                         .master = p.master,
                                         .gradient_dtype = p.gradient,
                                         .moment_dtype = p.moment,
                                         .hyperparameters = options_.adamw,
                                         .scale_gradients = !scales_gradients_in_place(),
                                         .state = scalars()});
}

void Optimizer::end_update() {
  executor_.apply("FINISH_STEP", OperationKind::optimizer, layers::finish_step,
                  layers::FinishStep{.state = scalars(), .scaling = options_.precision.loss_scaling});
  gradients_.give_back();
}

StepState Optimizer::state() const {
  StepState state;
  detail::to_host(executor_.memory().context(), &state, state_.data(), sizeof(state));
  return state;
}

void Optimizer::set_state(const StepState& state) {
  detail::to_device(executor_.memory().context(), state_.data(), &state, sizeof(state));
}

void Optimizer::set_learning_rate(float learning_rate) {
  char* const place = static_cast<char*>(state_.data()) + offsetof(StepState, learning_rate);
  detail::to_device(executor_.memory().context(), place, &learning_rate, sizeof(learning_rate));
}

}  // namespace warpmeter::transformer
