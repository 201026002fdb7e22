#pragma once

#include <optional>

#include "kernels/data_parallel/trainee.hpp"
#include "kernels/layers/adamw.hpp"
#include "kernels/layers/step_state.hpp"

namespace warpmeter::data_parallel {

/// The notes' example of data-parallel training: 16 -> 32 -> 4 with biases, ReLU between, mean squared error; fp32.
/// Inputs and targets are normal random numbers. No gradient is clipped.
struct ToyMlpOptions {
  std::int64_t batch = 128;
  Optimizer optimizer = Optimizer::adamw;
  float learning_rate = 1e-4f;
  layers::AdamwHyperparameters adamw{};
  std::vector<bool> frozen{};      ///< by parameter: weight and bias of the first layer, then of the second
  std::int64_t micro_batches = 1;  ///< whose gradients add up to a step's mean
  bool resident_weights = false;   ///< no memory for weights, until reside_weights()
};

class ToyMlp final : public Trainee {
 public:
  static constexpr std::int64_t kIn = 16, kHidden = 32, kOut = 4;
  static constexpr std::int64_t kBatchOfTheNotes = 128;
  static constexpr std::int64_t kParameters = kHidden * (kIn + 1) + kOut * (kHidden + 1);
  /// Multiplications and additions of a sample's forward.
  static constexpr double kForwardFlops = 2.0 * (kIn * kHidden + kHidden * kOut);

  ToyMlp(const Context& context, const ToyMlpOptions& options, bool planning = false);

  [[nodiscard]] const std::vector<TrainedParameter>& parameters() const override { return parameters_; }
  [[nodiscard]] DType gradient_dtype() const override { return DType::fp32; }
  [[nodiscard]] transformer::Memory& memory() override { return memory_; }
  void reside_weights(void* base) override;
  [[nodiscard]] std::size_t weight_bytes() const override {
    return static_cast<std::size_t>(elements_) * sizeof(float);
  }
  void initialize(std::uint64_t seed) override;
  void reside_gradients(void* base, std::vector<std::int64_t> places) override;
  void observe_gradients(transformer::GradientObserver* observer) override { observer_ = observer; }
  void keep_state_of(std::vector<bool> kept) override;
  void prepare_training() override;
  void set_batch(std::uint64_t seed, std::int64_t step, std::int64_t first, std::int64_t global) override;
  void forward_backward(bool accumulate) override;
  void begin_update() override;
  void update(std::span<const std::size_t> parameters) override;
  void end_update() override;
  [[nodiscard]] std::vector<collectives::CollectiveBuffer> weight_arrays() const override;
  [[nodiscard]] collectives::CollectiveBuffer weights_of(std::size_t first, std::size_t last) const override;
  [[nodiscard]] std::vector<float> parameter(std::size_t index) const override;
  [[nodiscard]] double loss() const override;

 private:
  [[nodiscard]] StreamView stream() const { return memory_.context().stream; }
  [[nodiscard]] Device device() const { return memory_.context().device(); }
  [[nodiscard]] float* gradient(std::size_t index) const;
  void set(const transformer::Array& array, const std::vector<float>& values) const;

  ToyMlpOptions options_;
  transformer::Memory memory_;
  std::vector<TrainedParameter> parameters_;
  std::vector<std::int64_t> offsets_, gradient_places_, state_places_;
  std::int64_t elements_ = 0, state_elements_ = 0;  ///< of the weights, of each moment
  transformer::Array weights_, own_gradients_, first_moments_, second_moments_, state_, loss_;
  transformer::Array x_, targets_, hidden_, out_, d_hidden_;
  float* gradients_ = nullptr;
  transformer::GradientObserver* observer_ = nullptr;
};

/// y (rows, out) = x (rows, in) weight^T + bias, with ReLU where asked for. weight (out, in). Sums in the order of
/// `in`.
struct ToyLinear {
  std::int64_t rows = 0, in = 0, out = 0;
  bool relu = false;
  const float *x = nullptr, *weight = nullptr, *bias = nullptr;
  float* y = nullptr;
};
/// d_weight (+)= d_y^T x, d_bias (+)= the sum of d_y; null: not wanted. Sums in the order of rows.
struct ToyLinearWeightGradient {
  std::int64_t rows = 0, in = 0, out = 0;
  bool accumulate = false;
  const float *x = nullptr, *d_y = nullptr;
  float *d_weight = nullptr, *d_bias = nullptr;
};
/// d_x = d_y weight where x is above 0, else 0: through the ReLU that gave x.
struct ToyLinearInputGradient {
  std::int64_t rows = 0, in = 0, out = 0;
  const float *x = nullptr, *d_y = nullptr, *weight = nullptr;
  float* d_x = nullptr;
};
/// loss = mean of (y - target)^2 over `count`; y becomes its gradient times `scale`.
struct ToyLoss {
  std::int64_t count = 0;
  float scale = 1;
  const float* target = nullptr;
  float *y = nullptr, *loss = nullptr;
};

namespace cpu {
void run(const Context& context, const ToyLinear& arguments);
void run(const Context& context, const ToyLinearWeightGradient& arguments);
void run(const Context& context, const ToyLinearInputGradient& arguments);
void run(const Context& context, const ToyLoss& arguments);
}  // namespace cpu
namespace cuda {
void run(const Context& context, const ToyLinear& arguments);
void run(const Context& context, const ToyLinearWeightGradient& arguments);
void run(const Context& context, const ToyLinearInputGradient& arguments);
void run(const Context& context, const ToyLoss& arguments);
}  // namespace cuda

}  // namespace warpmeter::data_parallel
