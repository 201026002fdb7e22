#include "kernels/transformer/model.hpp"

#include <optional>
#include <source_location>
#include <utility>

#include "kernels/layers/embedding.hpp"
#include "kernels/layers/rope.hpp"
#include "kernels/runtime/check.hpp"
#include "kernels/transformer/detail/host_copies.hpp"
#include "kernels/transformer/head.hpp"
#include "kernels/transformer/optimizer.hpp"

namespace warpmeter::transformer {

namespace {

const ModelConfig& checked(const ModelConfig& config) {
  WM_CHECK(invalid_reason(config).empty(), invalid_reason(config));
  return config;
}

std::unique_ptr<layers::Matmul> matmul_of(const Context& context, const ModelOptions& options, bool planning) {
  return planning ? nullptr : layers::make_matmul(context, options.matmul);
}

Charge workspace_of_products(Memory& memory) {
  const std::size_t bytes = layers::matmul_workspace_bytes(memory.context().device());
  return bytes == 0 ? Charge() : Charge(memory, MemoryKind::workspace, Memory::rounded(bytes));
}

OptimizerOptions optimizer_options(const ModelOptions& options) {
  return {.precision = options.precision,
          .adamw = options.adamw,
          .learning_rate = options.learning_rate,
          .max_norm = options.max_norm,
          .merged = options.structure == Structure::fused};
}

/// A range and a phase of the allocator's history; neither in a planning run.
class StepScope {
 public:
  StepScope(std::string_view name, const Memory& memory, std::source_location where = std::source_location::current()) {
    if (memory.planning()) return;
    range_.emplace(name, where);
    phase_.emplace(*memory.context().allocator, name);
  }

 private:
  std::optional<Range> range_;
  std::optional<PhaseScope> phase_;
};

std::string_view layer_name(std::int64_t index) {
  return intern("LAYER_" + std::to_string(index));
}

}  // namespace

std::string_view name(Recompute recompute) noexcept {
  return recompute == Recompute::none ? "none" : "block";
}

struct Model::Impl {
  Impl(const Context& context, const ModelConfig& model_config, const ModelOptions& model_options, bool planning)
      : config(checked(model_config)),
        options(model_options),
        layout(config),
        memory(context, planning),
        matmul(matmul_of(context, options, planning)),
        executor(memory, matmul.get(), side_by_side()),
        gradients(layout, options.frozen),
        matmul_workspace(workspace_of_products(memory)),
        weights(memory, layout, options.precision, options.resident_weights),
        tokens(memory, "tokens", rows(), DType::int32, MemoryKind::activations),
        targets(memory, "targets", rows(), DType::int32, MemoryKind::activations),
        rope_table(memory, "rope table", options.context * config.head_dim(), DType::fp32, MemoryKind::workspace),
        head(executor, block_context, layout, options.structure, options.micro_batches),
        optimizer(executor, layout, weights, gradients, optimizer_options(options)) {
    for (std::int64_t i = 0; i < config.layers; ++i) layer_names.push_back(layer_name(i));
    executor.set_fused_products(options.fused_products);
    if (!planning) {
      const std::vector<float> table = layers::rope_table(options.context, config.head_dim());
      detail::to_device(context, rope_table.data(), table.data(), table.size() * sizeof(float));
    }
    block_context.config = config;
    block_context.precision = options.precision;
    block_context.batch = options.batch;
    block_context.context = options.context;
    block_context.attention = options.attention;
    block_context.rope_table = rope_table.as<float>();
    block_context.weights = &weights.array();
    block_context.gradients = &gradients;
  }
  ~Impl() { side.reset(); }  // which waits, before the arrays that it works on go
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  ModelConfig config;
  ModelOptions options;
  ParameterLayout layout;
  Memory memory;
  std::unique_ptr<layers::Matmul> matmul;
  std::unique_ptr<SideLane> side;
  Executor executor;
  Gradients gradients;
  Charge matmul_workspace, side_workspace;
  Weights weights;
  Array tokens, targets, rope_table;
  BlockContext block_context;
  Head head;
  Optimizer optimizer;
  Array loss, logits;
  std::vector<std::string_view> layer_names;

  /// An eager framework keeps to one stream, and so does the CPU.
  [[nodiscard]] bool side_by_side() const {
    return options.side_stream && options.structure == Structure::fused && memory.context().device().is_cuda();
  }
  [[nodiscard]] std::int64_t rows() const { return options.batch * options.context; }
  [[nodiscard]] const Context& context() const { return memory.context(); }

  /// body(index, layer) within the layer's range.
  template <class Body>
  void in_layer(std::int64_t index, Body&& body) {
    const StepScope scope(layer_names[static_cast<std::size_t>(index)], memory);
    executor.set_layer(index);
    body();
    executor.set_layer(-1);
  }

  [[nodiscard]] ResidualStream embed() {
    ResidualStream residual;
    residual.current = Array(memory, {"embedded tokens", "EMBEDDING"}, rows() * config.d_model,
                             options.precision.activation, MemoryKind::activations);
    executor.apply("EMBEDDING", OperationKind::embedding, layers::embedding_forward,
                   layers::EmbeddingForward{.rows = rows(),
                                            .width = config.d_model,
                                            .vocab = config.vocab,
                                            .dtype = options.precision.activation,
                                            .tokens = tokens.as<std::int32_t>(),
                                            .table = weights.at(layout.embedding()),
                                            .out = residual.current.data()});
    return residual;
  }

  void embedding_backward(const Array& gradient) {
    executor.apply_with_workspace("EMBEDDING_BWD", OperationKind::embedding, layers::embedding_backward,
                                  layers::EmbeddingBackward{.rows = rows(),
                                                            .width = config.d_model,
                                                            .vocab = config.vocab,
                                                            .dtype = options.precision.activation,
                                                            .gradient_dtype = options.precision.gradient,
                                                            .accumulate = gradients.accumulating() || config.tied_head,
                                                            .tokens = tokens.as<std::int32_t>(),
                                                            .d_out = gradient.data(),
                                                            .d_table = gradients.at(layout.embedding())});
    gradients.ready(layout.embedding(), context().stream);
  }

  void forward() {
    const StepScope scope("FWD_STEP", memory);
    logits.reset();
    const Block& kind = block(options.structure);
    ResidualStream residual = embed();
    for (std::int64_t i = 0; i < config.layers; ++i) {
      in_layer(i, [&] {
        BlockState state_of_block;
        kind.forward(executor, block_context, layout.layer(i), residual, Keep::nothing, state_of_block, false);
      });
    }
    NormedResidual last = head.norm(residual);
    last.residual.reset();
    logits = head.logits(last.normed);
  }

  void forward_backward() {
    WM_CHECK(optimizer.prepared(), "prepare_training() comes first");
    gradients.give_back();
    const Block& kind = block(options.structure);
    std::vector<BlockState> states(static_cast<std::size_t>(config.layers));
    NormedResidual last;
    Array d_logits;
    logits.reset();
    {
      const StepScope scope("FWD_STEP", memory);
      ResidualStream residual = embed();
      const Keep keep = options.recompute == Recompute::block ? Keep::input : Keep::everything;
      for (std::int64_t i = 0; i < config.layers; ++i) {
        in_layer(i, [&] {
          kind.forward(executor, block_context, layout.layer(i), residual, keep, states[static_cast<std::size_t>(i)],
                       false);
        });
      }
      last = head.norm(residual);
      d_logits = head.loss(last.normed, targets.as<std::int32_t>(), optimizer.device_state(), loss.as<float>());
    }
    const StepScope scope("BWD_STEP", memory);
    take_gradients(gradients.head_group());
    if (config.tied_head) take_gradients(gradients.embedding_group());
    Array gradient = head.backward(std::move(d_logits), std::move(last));
    executor.turn();
    for (std::int64_t i = config.layers; i-- > 0;) {
      in_layer(i, [&] {
        BlockState& kept = states[static_cast<std::size_t>(i)];
        if (options.recompute == Recompute::block) {
          ResidualStream residual;
          residual.current = std::move(kept.input);
          kind.forward(executor, block_context, layout.layer(i), residual, Keep::everything, kept, true);
        }
        take_gradients(gradients.layer_group(i));
        kind.backward(executor, block_context, layout.layer(i), gradient, kept);
        executor.turn();
      });
    }
    take_gradients(gradients.embedding_group());
    if (gradients.wanted(layout.embedding())) embedding_backward(gradient);
    executor.join();
  }

  void take_gradients(std::size_t group) { gradients.take(memory, group, options.precision.gradient); }

  void prepare_training() {
    optimizer.prepare();
    loss = Array(memory, "loss", 1, DType::fp32, MemoryKind::logits);
    if (side_by_side()) {
      side_workspace = workspace_of_products(memory);
      if (!memory.planning()) side = std::make_unique<SideLane>(context(), *matmul);
      executor.set_side(side.get());
    }
    optimizer.reset();
  }

  void optimizer_step() {
    const StepScope scope("OPTIM_STEP", memory);
    optimizer.step();
  }
};

Model::Model(const Context& context, const ModelConfig& config, const ModelOptions& options, bool planning)
    : impl_(std::make_unique<Impl>(context, config, options, planning)) {}
Model::~Model() = default;

void Model::initialize(std::uint64_t seed) {
  impl_->weights.initialize(seed, impl_->config.tied_head);
}

void Model::set_parameter(std::size_t index, std::span<const float> values) {
  impl_->weights.set(index, values);
}

std::vector<float> Model::parameter(std::size_t index) const {
  return impl_->weights.value(index);
}

std::vector<float> Model::gradient(std::size_t index) const {
  const Parameter& p = impl_->layout.parameters().at(index);
  const Gradients& all = impl_->gradients;
  WM_CHECK(all.available(p.offset), "gradients are there from forward_backward() to optimizer_step()");
  return detail::floats_on_host(impl_->context(), all.at(p.offset), impl_->options.precision.gradient, p.count());
}

const ParameterLayout& Model::layout() const {
  return impl_->layout;
}

void Model::set_batch(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets) {
  Impl& m = *impl_;
  const auto rows = static_cast<std::size_t>(m.rows());
  WM_CHECK(tokens.size() == rows && targets.size() == rows, "a batch has batch * context tokens and targets");
  if (m.memory.planning()) return;
  detail::to_device(m.context(), m.tokens.data(), tokens.data(), tokens.size_bytes());
  detail::to_device(m.context(), m.targets.data(), targets.data(), targets.size_bytes());
}

void Model::forward() {
  impl_->forward();
}

void Model::prepare_training() {
  impl_->prepare_training();
}

void Model::forward_backward() {
  impl_->forward_backward();
}

void Model::optimizer_step() {
  impl_->optimizer_step();
}

void Model::train_step() {
  impl_->forward_backward();
  impl_->optimizer_step();
}

void Model::reside_weights(void* base) {
  impl_->weights.reside(base);
}

std::size_t Model::weight_bytes() const {
  return impl_->weights.bytes();
}

void Model::reside_gradients(void* base, std::vector<std::int64_t> places) {
  impl_->gradients.reside(base, impl_->options.precision.gradient, std::move(places));
}

void Model::observe_gradients(GradientObserver* observer) {
  impl_->gradients.observe(observer);
}

void Model::accumulate() {
  WM_CHECK(impl_->gradients.resident(), "gradients that go with every step cannot add up");
  impl_->gradients.set_accumulating(true);
  impl_->forward_backward();
  impl_->gradients.set_accumulating(false);
}

void Model::keep_state_of(std::vector<bool> kept) {
  impl_->optimizer.keep_state_of(kept);
}

void Model::begin_update() {
  impl_->optimizer.begin_update();
}

void Model::update(std::span<const std::size_t> parameters) {
  impl_->optimizer.update(parameters);
}

void Model::end_update() {
  impl_->optimizer.end_update();
}

const layers::StepState* Model::device_step_state() const {
  return impl_->optimizer.device_state();
}

void* Model::device_gradient(std::size_t index) const {
  return impl_->gradients.at(impl_->layout.parameters().at(index).offset);
}

bool Model::scales_gradients_in_place() const {
  return impl_->optimizer.scales_gradients_in_place();
}

std::vector<WeightArray> Model::weight_arrays() const {
  return impl_->weights.arrays();
}

WeightArray Model::weights_of(std::size_t first, std::size_t last) const {
  return impl_->weights.range(first, last);
}

void Model::drop_logits() {
  impl_->logits.reset();
}

std::vector<float> Model::logits() const {
  const Array& logits = impl_->logits;
  return detail::floats_on_host(impl_->context(), logits.data(), logits.dtype(), logits.count());
}

float Model::loss() const {
  float value;
  detail::to_host(impl_->context(), &value, impl_->loss.data(), sizeof(value));
  return value;
}

layers::StepState Model::step_state() const {
  return impl_->optimizer.state();
}

void Model::set_step_state(const layers::StepState& state) {
  impl_->optimizer.set_state(state);
}

void Model::set_learning_rate(float learning_rate) {
  impl_->optimizer.set_learning_rate(learning_rate);
}

Memory& Model::memory() {
  return impl_->memory;
}

void Model::set_sink(OperationSink* sink) {
  impl_->executor.set_sink(sink);
}

MemoryPrediction predict_memory(const Context& context, const ModelConfig& config, const ModelOptions& options) {
  Model model(context, config, options, true);
  Memory& memory = model.memory();
  MemoryPrediction prediction;
  memory.reset_peak();
  model.forward();
  prediction.forward = memory.peak();
  model.drop_logits();
  model.prepare_training();
  memory.reset_peak();
  model.forward_backward();
  prediction.forward_backward = memory.peak();
  memory.reset_peak();
  model.train_step();
  prediction.train_step = memory.peak();
  return prediction;
}

}  // namespace warpmeter::transformer
