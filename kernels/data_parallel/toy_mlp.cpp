#include "kernels/data_parallel/toy_mlp.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/data_parallel/gradient_descent.hpp"
#include "kernels/layers/gradient_norm.hpp"
#include "kernels/runtime/check.hpp"
#include "kernels/runtime/random.hpp"

namespace warpmeter::data_parallel {

using transformer::Array;
using transformer::MemoryKind;

namespace {

enum Index : std::size_t { kWeight1, kBias1, kWeight2, kBias2, kCount };
constexpr std::uint64_t kInputs = std::uint64_t{1} << 40, kTargets = std::uint64_t{1} << 41;

template <class Arguments>
void run(const Context& context, const Arguments& arguments) {
#if WARPMETER_CUDA
  if (context.device().is_cuda()) return cuda::run(context, arguments);
#endif
  cpu::run(context, arguments);
}

/// On the host: the same for every device.
std::vector<float> normal(std::uint64_t seed, std::uint64_t stream_id, std::int64_t first, std::int64_t count,
                          std::int64_t all, float deviation) {
  CachingAllocator allocator(Device::cpu());
  const Context context{{Device::cpu(), nullptr}, &allocator};
  const Tensor values(context, {all}, DType::fp32);
  fill_normal(values, seed, stream_id, context.stream, deviation);
  const auto* data = values.data_as<float>() + first;
  return {data, data + count};
}

/// Each begins on a multiple of the plan's alignment; -1 where `wanted` says no.
template <class Wanted>
std::vector<std::int64_t> packed(const std::vector<TrainedParameter>& parameters, Wanted&& wanted, std::int64_t& end) {
  std::vector<std::int64_t> places;
  end = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    places.push_back(wanted(i) ? end : -1);
    if (!wanted(i)) continue;
    const std::int64_t a = GradientPlan::kAlignment;
    end += (parameters[i].count + a - 1) / a * a;
  }
  return places;
}

}  // namespace

ToyMlp::ToyMlp(const Context& context, const ToyMlpOptions& options, bool planning)
    : options_(options), memory_(context, planning) {
  const std::int64_t counts[] = {kHidden * kIn, kHidden, kOut * kHidden, kOut};
  const char* const names[] = {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"};
  for (std::size_t i = 0; i < kCount; ++i) {
    parameters_.push_back({names[i], counts[i], options_.frozen.empty() || !options_.frozen[i]});
  }
  const auto all = [](std::size_t) { return true; };
  offsets_ = packed(parameters_, all, elements_);
  const auto array = [&](const char* what, std::int64_t count, MemoryKind kind) {
    return Array(memory_, what, count, DType::fp32, kind);
  };
  if (!options_.resident_weights) weights_ = array("weights", elements_, MemoryKind::parameters);
  weights_.fill_zero();
  x_ = array("inputs", options_.batch * kIn, MemoryKind::activations);
  targets_ = array("targets", options_.batch * kOut, MemoryKind::activations);
  hidden_ = array("hidden", options_.batch * kHidden, MemoryKind::activations);
  out_ = array("outputs", options_.batch * kOut, MemoryKind::activations);
  d_hidden_ = array("d hidden", options_.batch * kHidden, MemoryKind::activations);
  keep_state_of(std::vector<bool>(kCount, true));
}

void ToyMlp::set(const Array& array, const std::vector<float>& values) const {
  copy_bytes(array.data(), device(), values.data(), Device::cpu(), values.size() * sizeof(float), stream());
  synchronize(stream());
}

void ToyMlp::reside_weights(void* base) {
  WM_CHECK(!weights_.defined(), "weights have a place already");
  weights_ = Array(memory_, base, elements_, DType::fp32);
  weights_.fill_zero();
}

void ToyMlp::initialize(std::uint64_t seed) {
  if (memory_.planning()) return;
  for (std::size_t i = 0; i < kCount; ++i) {
    const std::int64_t count = parameters_[i].count;
    const double in = i < kWeight2 ? kIn : kHidden;
    const std::vector<float> values = normal(seed, i, 0, count, count, static_cast<float>(1 / std::sqrt(in)));
    copy_bytes(weights_.at(offsets_[i]), device(), values.data(), Device::cpu(), values.size() * sizeof(float),
               stream());
    synchronize(stream());
  }
}

void ToyMlp::reside_gradients(void* base, std::vector<std::int64_t> places) {
  WM_CHECK(places.size() == kCount, "a place for every parameter");
  gradients_ = static_cast<float*>(base);
  gradient_places_ = std::move(places);
}

void ToyMlp::keep_state_of(std::vector<bool> kept) {
  WM_CHECK(!state_.defined(), "before prepare_training()");
  state_places_ = packed(
      parameters_, [&](std::size_t i) { return kept[i] && parameters_[i].trainable; }, state_elements_);
}

void ToyMlp::prepare_training() {
  if (gradient_places_.empty()) {
    const GradientPlan plan(parameters_, sizeof(float));
    gradient_places_ = plan.places();
    own_gradients_ =
        Array(memory_, "gradients", std::max<std::int64_t>(plan.elements(), 1), DType::fp32, MemoryKind::gradients);
    gradients_ = own_gradients_.as<float>();
  }
  const std::int64_t count = std::max<std::int64_t>(state_elements_, 1);
  first_moments_ = Array(memory_, "first moments", count, DType::fp32, MemoryKind::optimizer);
  second_moments_ = Array(memory_, "second moments", count, DType::fp32, MemoryKind::optimizer);
  state_ = Array(memory_, "step state", sizeof(layers::StepState), DType::uint8, MemoryKind::optimizer);
  loss_ = Array(memory_, "loss", 1, DType::fp32, MemoryKind::logits);
  if (memory_.planning()) return;
  for (const Array* array : {&first_moments_, &second_moments_}) {
    fill_bytes(array->data(), device(), 0, static_cast<std::size_t>(count) * sizeof(float), stream());
  }
  layers::StepState state;
  state.learning_rate = options_.learning_rate;
  copy_bytes(state_.data(), device(), &state, Device::cpu(), sizeof(state), stream());
  synchronize(stream());
}

void ToyMlp::set_batch(std::uint64_t seed, std::int64_t step, std::int64_t first, std::int64_t global) {
  if (memory_.planning()) return;
  const auto number = static_cast<std::uint64_t>(step);
  set(x_, normal(seed, kInputs + number, first * kIn, options_.batch * kIn, global * kIn, 1));
  set(targets_, normal(seed, kTargets + number, first * kOut, options_.batch * kOut, global * kOut, 1));
}

float* ToyMlp::gradient(std::size_t index) const {
  return parameters_[index].trainable ? gradients_ + gradient_places_[index] : nullptr;
}

void ToyMlp::forward_backward(bool accumulate) {
  WM_CHECK(state_.defined(), "prepare_training() comes first");
  if (memory_.planning()) return;
  const Context& context = memory_.context();
  const std::int64_t rows = options_.batch;
  auto *x = x_.as<float>(), *hidden = hidden_.as<float>(), *out = out_.as<float>(), *d_hidden = d_hidden_.as<float>();
  const auto weight = [&](std::size_t i) { return static_cast<float*>(weights_.at(offsets_[i])); };
  const auto ready = [&](std::size_t i) {
    if (observer_ != nullptr && parameters_[i].trainable) observer_->gradient_ready(i, context.stream);
  };
  run(context, ToyLinear{rows, kIn, kHidden, true, x, weight(kWeight1), weight(kBias1), hidden});
  run(context, ToyLinear{rows, kHidden, kOut, false, hidden, weight(kWeight2), weight(kBias2), out});
  const auto outputs = static_cast<float>(rows * kOut * options_.micro_batches);
  run(context, ToyLoss{rows * kOut, 2 / outputs, targets_.as<float>(), out, loss_.as<float>()});
  run(context,
      ToyLinearWeightGradient{rows, kHidden, kOut, accumulate, hidden, out, gradient(kWeight2), gradient(kBias2)});
  ready(kBias2);
  ready(kWeight2);
  run(context, ToyLinearInputGradient{rows, kHidden, kOut, hidden, out, weight(kWeight2), d_hidden});
  run(context,
      ToyLinearWeightGradient{rows, kIn, kHidden, accumulate, x, d_hidden, gradient(kWeight1), gradient(kBias1)});
  ready(kBias1);
  ready(kWeight1);
}

void ToyMlp::begin_update() {
  std::vector<layers::GradientTensor> list;
  for (std::size_t i = 0; i < kCount; ++i) {
    if (parameters_[i].trainable) list.push_back({gradients_ == nullptr ? nullptr : gradient(i), parameters_[i].count});
  }
  layers::GradientNorm norm{
      .gradients = list, .dtype = DType::fp32, .state = static_cast<layers::StepState*>(state_.data())};
  const auto bytes = static_cast<std::int64_t>(layers::workspace_bytes(device(), norm));
  const Array workspace(memory_, "workspace", bytes, DType::uint8, MemoryKind::workspace);
  if (memory_.planning()) return;
  norm.workspace = workspace.data();
  layers::gradient_norm(memory_.context(), norm);
}

void ToyMlp::update(std::span<const std::size_t> parameters) {
  if (memory_.planning()) return;
  std::vector<layers::AdamwTensor> tensors;
  const auto* state = static_cast<const layers::StepState*>(state_.data());
  for (const std::size_t i : parameters) {
    if (!parameters_[i].trainable) continue;
    WM_CHECK(state_places_[i] >= 0, "the parameter's state is kept here");
    auto* weight = static_cast<float*>(weights_.at(offsets_[i]));
    if (options_.optimizer == Optimizer::sgd) {
      gradient_descent(memory_.context(),
                       {.count = parameters_[i].count, .weight = weight, .gradient = gradient(i), .state = state});
    } else {
      tensors.push_back({weight, nullptr, gradient(i), first_moments_.at(state_places_[i]),
                         second_moments_.at(state_places_[i]), parameters_[i].count});
    }
  }
  if (tensors.empty()) return;
  layers::adamw(memory_.context(), {.tensors = tensors, .hyperparameters = options_.adamw, .state = state});
}

void ToyMlp::end_update() {
  if (memory_.planning()) return;
  layers::finish_step(memory_.context(), {.state = static_cast<layers::StepState*>(state_.data())});
}

std::vector<collectives::CollectiveBuffer> ToyMlp::weight_arrays() const {
  return {{weights_.data(), weights_.count(), DType::fp32, device()}};
}

collectives::CollectiveBuffer ToyMlp::weights_of(std::size_t first, std::size_t last) const {
  return {weights_.at(offsets_[first]), offsets_[last] + parameters_[last].count - offsets_[first], DType::fp32,
          device()};
}

std::vector<float> ToyMlp::parameter(std::size_t index) const {
  std::vector<float> values(static_cast<std::size_t>(parameters_.at(index).count));
  copy_bytes(values.data(), Device::cpu(), weights_.at(offsets_[index]), device(), values.size() * sizeof(float),
             stream());
  synchronize(stream());
  return values;
}

double ToyMlp::loss() const {
  float value = 0;
  copy_bytes(&value, Device::cpu(), loss_.data(), device(), sizeof(value), stream());
  synchronize(stream());
  return static_cast<double>(value);
}

}  // namespace warpmeter::data_parallel
