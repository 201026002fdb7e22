#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/collectives/communicator.hpp"
#include "kernels/data_parallel/plan.hpp"
#include "kernels/transformer/gradients.hpp"
#include "kernels/transformer/memory.hpp"

namespace warpmeter::data_parallel {

/// What is trained, as data-parallel training sees it: one rank's copy. All work is enqueued on its context's stream.
/// The order of calls: reside_weights() where it was made for that, initialize() and whatever else sets weights,
/// reside_gradients(), keep_state_of(), prepare_training(); then steps.
class Trainee {
 public:
  virtual ~Trainee() = default;

  [[nodiscard]] virtual const std::vector<TrainedParameter>& parameters() const = 0;
  [[nodiscard]] virtual DType gradient_dtype() const = 0;
  [[nodiscard]] virtual transformer::Memory& memory() = 0;

  /// Weights live at `base`, weight_bytes() of it, from now on zero. Only of one that was made without memory for them.
  virtual void reside_weights(void* base) = 0;
  [[nodiscard]] virtual std::size_t weight_bytes() const = 0;
  virtual void initialize(std::uint64_t seed) = 0;
  /// Gradients live at `base`, which holds zeros, parameter i's places[i] elements from there.
  virtual void reside_gradients(void* base, std::vector<std::int64_t> places) = 0;
  /// Who is told when a gradient is finished; null: nobody.
  virtual void observe_gradients(transformer::GradientObserver* observer) = 0;
  /// The optimizer's state is kept for these parameters only.
  virtual void keep_state_of(std::vector<bool> kept) = 0;
  virtual void prepare_training() = 0;

  /// The samples from `first` on of the `global` ones that all ranks together have at step `step`, as many as the batch
  /// has. The same numbers whoever asks for them.
  virtual void set_batch(std::uint64_t seed, std::int64_t step, std::int64_t first, std::int64_t global) = 0;
  /// Gradients of the mean loss over the batch, and over the micro-batches of a step; written, or added to what is
  /// there.
  virtual void forward_backward(bool accumulate) = 0;
  /// The optimizer's step in parts: what needs all gradients, updates of some parameters (ascending), the end.
  virtual void begin_update() = 0;
  virtual void update(std::span<const std::size_t> parameters) = 0;
  virtual void end_update() = 0;

  /// Arrays that hold everything that must be alike on all ranks before the first step.
  [[nodiscard]] virtual std::vector<collectives::CollectiveBuffer> weight_arrays() const = 0;
  /// The weights from parameter `first` to `last`, both with: what other ranks need after an update.
  [[nodiscard]] virtual collectives::CollectiveBuffer weights_of(std::size_t first, std::size_t last) const = 0;

  /// As fp32 on the host; exact where this rank keeps the parameter's state. Waits.
  [[nodiscard]] virtual std::vector<float> parameter(std::size_t index) const = 0;
  /// Of the last batch. Waits.
  [[nodiscard]] virtual double loss() const = 0;
};

/// How weights follow gradients.
enum class Optimizer : std::uint8_t {
  adamw,
  sgd,  ///< w -= learning rate x gradient: fp32 weights only
};

}  // namespace warpmeter::data_parallel
