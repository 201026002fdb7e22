#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/layers/adamw.hpp"
#include "kernels/layers/matmul.hpp"
#include "kernels/layers/step_state.hpp"
#include "kernels/transformer/block.hpp"
#include "kernels/transformer/weights.hpp"

namespace warpmeter::transformer {

enum class Recompute : std::uint8_t { none, block };
[[nodiscard]] std::string_view name(Recompute recompute) noexcept;

struct ModelOptions {
  PrecisionPolicy precision;
  Structure structure = Structure::fused;
  const attention::Implementation* attention = nullptr;  ///< must support the problem
  Recompute recompute = Recompute::none;
  std::int64_t batch = 4, context = 256;
  layers::AdamwHyperparameters adamw{};
  float learning_rate = 1e-3f;
  float max_norm = 1.0f;  ///< of all gradients together; 0: no clipping
  layers::MatmulOptions matmul{};
  bool side_stream =
      true;  ///< fused on CUDA: weight gradients go to a second stream, beside the input gradients' chain
  bool fused_products = true;      ///< fused, Hopper, 16 bits: RoPE and SwiGLU in the products before
  std::vector<bool> frozen{};      ///< parameters that are not trained, by index; empty: none
  std::int64_t micro_batches = 1;  ///< forward_backward() calls whose gradients add up to a step's mean
  bool resident_weights = false;   ///< weights lie in somebody else's memory: reside_weights() before anything else
};

/// A GPT-style model on one device: parameters, forward, backward, optimizer step. All work is enqueued on the
/// context's stream. Throws OutOfMemory from whatever allocates; a model that threw must not be used further.
///
/// Parameters (with masters) and moments are flat arrays in ParameterLayout's order. Activations and gradients come and
/// go array by array from the context's allocator, so its history shows each.
class Model {
 public:
  /// Takes memory for parameters and the batch; their values are not set. With `planning` nothing is allocated or run:
  /// every method then only accounts (memory()) and tells the operations to the sink.
  Model(const Context& context, const ModelConfig& config, const ModelOptions& options, bool planning = false);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  /// Normal values: embedding with deviation 1, linear layers sqrt(2 / (in + out)), norms 1.
  void initialize(std::uint64_t seed);
  /// Copies one parameter in from host memory; fp32, its layout's count.
  void set_parameter(std::size_t index, std::span<const float> values);
  /// A parameter's exact value (its master's) or its gradient, as fp32 on the host.
  [[nodiscard]] std::vector<float> parameter(std::size_t index) const;
  [[nodiscard]] std::vector<float> gradient(std::size_t index) const;
  [[nodiscard]] const ParameterLayout& layout() const;

  /// Host arrays of batch * context entries in [0, vocab).
  void set_batch(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets);

  /// Inference: logits of every token. Nothing is kept for a backward.
  void forward();
  /// Takes memory for moments (zero) and the step's scalars. Once, before what follows.
  void prepare_training();
  /// Loss and all gradients, which stay until optimizer_step() or the next forward_backward().
  void forward_backward();
  /// Clipping and AdamW, and what follows from an overflow. Gives the gradients back.
  void optimizer_step();
  /// Both of these.
  void train_step();

  // For who trains several copies of the model side by side: weights and gradients in memory of his, told of one by
  // one, and updates of some parameters alone.

  /// Weights::reside(), with the bytes that it needs. Only of a model with resident_weights.
  void reside_weights(void* base);
  [[nodiscard]] std::size_t weight_bytes() const;
  /// Gradients::reside(). Before the first forward_backward().
  void reside_gradients(void* base, std::vector<std::int64_t> places);
  /// Gradients::observe().
  void observe_gradients(GradientObserver* observer);
  /// forward_backward() with the gradients added to what is there. Only where they reside.
  void accumulate();
  /// Keeps moments and masters of these parameters only, by index: the others can no longer be updated here, and
  /// parameter() gives the weights that products read. Before prepare_training().
  void keep_state_of(std::vector<bool> kept);
  /// optimizer_step() in parts: the norm of all gradients, the updates of some parameters (ascending), the step's end.
  void begin_update();
  void update(std::span<const std::size_t> parameters);
  void end_update();
  /// The step's scalars where they are, on the device; and the address of a gradient there.
  [[nodiscard]] const layers::StepState* device_step_state() const;
  [[nodiscard]] void* device_gradient(std::size_t index) const;
  /// Whether begin_update() has scaled the gradients in place, so that an optimizer must not.
  [[nodiscard]] bool scales_gradients_in_place() const;

  /// Weights::arrays() and range().
  [[nodiscard]] std::vector<WeightArray> weight_arrays() const;
  [[nodiscard]] WeightArray weights_of(std::size_t first, std::size_t last) const;

  /// Frees the last forward's logits.
  void drop_logits();
  /// Logits of the last forward(), (batch * context, vocab), as fp32 on the host.
  [[nodiscard]] std::vector<float> logits() const;
  /// Mean loss of the last forward_backward(); waits.
  [[nodiscard]] float loss() const;
  /// Waits.
  [[nodiscard]] layers::StepState step_state() const;
  void set_step_state(const layers::StepState& state);
  /// Of the steps from now on; those recorded in a graph follow it too.
  void set_learning_rate(float learning_rate);

  [[nodiscard]] Memory& memory();
  /// Told of every operation from now on; null: nobody.
  void set_sink(OperationSink* sink);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// What a model takes by its own account, from a planning run: nothing is allocated.
struct MemoryPrediction {
  MemoryByKind forward;           ///< at the peak of an inference forward
  MemoryByKind forward_backward;  ///< at the peak of forward and backward, optimizer state resident
  MemoryByKind train_step;        ///< at the peak of the whole step
};
[[nodiscard]] MemoryPrediction predict_memory(const Context& context, const ModelConfig& config,
                                              const ModelOptions& options);

}  // namespace warpmeter::transformer
