#include "kernels/data_parallel/model_trainee.hpp"

#include <utility>

#include "kernels/data_parallel/gradient_descent.hpp"
#include "kernels/runtime/check.hpp"
#include "kernels/runtime/random.hpp"

namespace warpmeter::data_parallel {

namespace {

// Random streams beside those of the parameters, which count from 0, and of other batches.
constexpr std::uint64_t kTokens = std::uint64_t{1} << 40, kTargets = std::uint64_t{1} << 41;

std::vector<std::int32_t> random_tokens(std::uint64_t seed, std::uint64_t stream_id, std::int64_t bound,
                                        std::int64_t first, std::int64_t count, std::int64_t all) {
  CachingAllocator allocator(Device::cpu());
  const Context context{{Device::cpu(), nullptr}, &allocator};
  const Tensor tokens(context, {all}, DType::int32);
  fill_integers(tokens, seed, stream_id, context.stream, bound);
  const auto* data = tokens.data_as<std::int32_t>() + first;
  return {data, data + count};
}

}  // namespace

std::vector<TrainedParameter> parameters_of(const transformer::ParameterLayout& layout,
                                            const std::vector<bool>& frozen) {
  std::vector<TrainedParameter> parameters;
  for (std::size_t i = 0; i < layout.parameters().size(); ++i) {
    const transformer::Parameter& p = layout.parameters()[i];
    // A norm's weight gradient comes with its input's.
    parameters.push_back({p.name, p.count(), frozen.empty() || !frozen[i], p.joined, p.norm});
  }
  return parameters;
}

ModelTrainee::ModelTrainee(const Context& context, const transformer::ModelConfig& config,
                           const transformer::ModelOptions& options, Optimizer optimizer, bool planning)
    : context_(context),
      config_(config),
      options_(options),
      optimizer_(optimizer),
      planning_(planning),
      model_(context, config, options, planning),
      parameters_(parameters_of(model_.layout(), options.frozen)) {
  WM_CHECK(optimizer == Optimizer::adamw || options.precision.activation == DType::fp32,
           "plain gradient descent is for fp32 weights");
}

void ModelTrainee::set_batch(std::uint64_t seed, std::int64_t step, std::int64_t first, std::int64_t global) {
  const std::int64_t begin = first * options_.context, count = options_.batch * options_.context;
  const auto number = static_cast<std::uint64_t>(step);
  const auto tokens = [&](std::uint64_t stream_id) {
    return random_tokens(seed, stream_id + number, config_.vocab, begin, count, global * options_.context);
  };
  model_.set_batch(tokens(kTokens), tokens(kTargets));
}

void ModelTrainee::update(std::span<const std::size_t> parameters) {
  if (optimizer_ == Optimizer::adamw) return model_.update(parameters);
  if (planning_) return;
  for (const std::size_t i : parameters) {
    if (!parameters_[i].trainable) continue;
    gradient_descent(context_, {.count = parameters_[i].count,
                                .weight = static_cast<float*>(model_.weights_of(i, i).data),
                                .gradient = static_cast<const float*>(model_.device_gradient(i)),
                                .scale_gradients = !model_.scales_gradients_in_place(),
                                .state = model_.device_step_state()});
  }
}

std::vector<collectives::CollectiveBuffer> ModelTrainee::weight_arrays() const {
  std::vector<collectives::CollectiveBuffer> buffers;
  for (const auto& array : model_.weight_arrays()) {
    buffers.emplace_back(array.data, array.count, array.dtype, context_.device());
  }
  return buffers;
}

collectives::CollectiveBuffer ModelTrainee::weights_of(std::size_t first, std::size_t last) const {
  const auto array = model_.weights_of(first, last);
  return {array.data, array.count, array.dtype, context_.device()};
}

}  // namespace warpmeter::data_parallel
