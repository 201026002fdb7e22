#pragma once

#include "kernels/data_parallel/trainee.hpp"
#include "kernels/transformer/model.hpp"

namespace warpmeter::data_parallel {

/// The parameters of a model for GradientPlan. `frozen` as in ModelOptions.
[[nodiscard]] std::vector<TrainedParameter> parameters_of(const transformer::ParameterLayout& layout,
                                                          const std::vector<bool>& frozen);

/// A transformer::Model in training. Tokens are random, targets too.
class ModelTrainee final : public Trainee {
 public:
  /// `planning` as Model's.
  ModelTrainee(const Context& context, const transformer::ModelConfig& config, const transformer::ModelOptions& options,
               Optimizer optimizer, bool planning = false);

  [[nodiscard]] const std::vector<TrainedParameter>& parameters() const override { return parameters_; }
  [[nodiscard]] DType gradient_dtype() const override { return options_.precision.gradient; }
  [[nodiscard]] transformer::Memory& memory() override { return model_.memory(); }
  void reside_weights(void* base) override { model_.reside_weights(base); }
  [[nodiscard]] std::size_t weight_bytes() const override { return model_.weight_bytes(); }
  void initialize(std::uint64_t seed) override { model_.initialize(seed); }
  void reside_gradients(void* base, std::vector<std::int64_t> places) override {
    model_.reside_gradients(base, std::move(places));
  }
  void observe_gradients(transformer::GradientObserver* observer) override { model_.observe_gradients(observer); }
  void keep_state_of(std::vector<bool> kept) override { model_.keep_state_of(std::move(kept)); }
  void prepare_training() override { model_.prepare_training(); }
  void set_batch(std::uint64_t seed, std::int64_t step, std::int64_t first, std::int64_t global) override;
  void forward_backward(bool accumulate) override { accumulate ? model_.accumulate() : model_.forward_backward(); }
  void begin_update() override { model_.begin_update(); }
  void update(std::span<const std::size_t> parameters) override;
  void end_update() override { model_.end_update(); }
  [[nodiscard]] std::vector<collectives::CollectiveBuffer> weight_arrays() const override;
  [[nodiscard]] collectives::CollectiveBuffer weights_of(std::size_t first, std::size_t last) const override;
  [[nodiscard]] std::vector<float> parameter(std::size_t index) const override { return model_.parameter(index); }
  [[nodiscard]] double loss() const override { return static_cast<double>(model_.loss()); }

  [[nodiscard]] transformer::Model& model() { return model_; }

 private:
  Context context_;
  transformer::ModelConfig config_;
  transformer::ModelOptions options_;
  Optimizer optimizer_;
  bool planning_;
  transformer::Model model_;
  std::vector<TrainedParameter> parameters_;
};

}  // namespace warpmeter::data_parallel
