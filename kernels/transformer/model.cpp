#include "kernels/transformer/model.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <source_location>
#include <utility>

#include "kernels/layers/cross_entropy.hpp"
#include "kernels/layers/elementwise.hpp"
#include "kernels/layers/embedding.hpp"
#include "kernels/layers/gradient_norm.hpp"
#include "kernels/layers/rmsnorm.hpp"
#include "kernels/layers/rope.hpp"
#include "kernels/runtime/check.hpp"
#include "kernels/runtime/random.hpp"

namespace warpmeter::transformer {

namespace {

using layers::MasterKind;
using layers::StepState;

std::unique_ptr<layers::Matmul> matmul_of(const Context& context, const ModelOptions& options, bool planning) {
  return planning ? nullptr : layers::make_matmul(context, options.matmul);
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
      : config(model_config),
        options(model_options),
        layout(model_config),
        memory(context, planning),
        matmul(matmul_of(context, model_options, planning)),
        executor(memory, matmul.get(), side_by_side()),
        gradients(layout, model_options.frozen) {
    WM_CHECK(invalid_reason(config).empty(), invalid_reason(config));
    const PrecisionPolicy& precision = options.precision;
    if (const std::size_t bytes = layers::matmul_workspace_bytes(context.device()); bytes != 0) {
      matmul_workspace = Charge(memory, MemoryKind::workspace, Memory::rounded(bytes));
    }
    weights = Array(memory, "weights", layout.elements(), precision.activation, MemoryKind::parameters);
    if (precision.master != MasterKind::none) {
      masters = Array(memory, "masters", layout.elements(),
                      precision.master == MasterKind::copy ? DType::fp32 : DType::bf16, MemoryKind::parameters);
    }
    tokens = Array(memory, "tokens", rows(), DType::int32, MemoryKind::activations);
    targets = Array(memory, "targets", rows(), DType::int32, MemoryKind::activations);
    rope_table = Array(memory, "rope table", options.context * config.head_dim(), DType::fp32, MemoryKind::workspace);
    for (std::int64_t i = 0; i < config.layers; ++i) layer_names.push_back(layer_name(i));
    if (!planning) {
      fill_bytes(weights.data(), device(), 0, bytes_of(weights), stream());
      if (masters.defined()) fill_bytes(masters.data(), device(), 0, bytes_of(masters), stream());
      const std::vector<float> table = layers::rope_table(options.context, config.head_dim());
      to_device(rope_table.data(), table.data(), table.size() * sizeof(float));
    }
    block_context.config = config;
    block_context.precision = precision;
    block_context.batch = options.batch;
    block_context.context = options.context;
    block_context.attention = options.attention;
    block_context.rope_table = rope_table.as<float>();
    block_context.weights = &weights;
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
  Array weights, masters, tokens, targets, rope_table;
  Array first_moments, second_moments, state, loss;
  std::int64_t state_elements = 0;
  std::vector<std::int64_t> state_places;  ///< of each parameter's moments and kept masters; empty: as the weights
  Array resident_squares;                  ///< of gradients that reside, those of each parameter at its square_places
  std::vector<std::int64_t> square_places;
  std::size_t squared = 0;  ///< parameters since the last backward
  Array logits;
  BlockContext block_context;
  std::vector<std::string_view> layer_names;

  /// An eager framework keeps to one stream, and so does the CPU.
  [[nodiscard]] bool side_by_side() const {
    return options.side_stream && options.structure == Structure::fused && memory.context().device().is_cuda();
  }
  [[nodiscard]] std::int64_t rows() const { return options.batch * options.context; }
  [[nodiscard]] Device device() const { return memory.context().device(); }
  [[nodiscard]] StreamView stream() const { return memory.context().stream; }
  [[nodiscard]] static std::size_t bytes_of(const Array& array) {
    return static_cast<std::size_t>(array.count()) * size_of(array.dtype());
  }
  void to_device(void* to, const void* from, std::size_t bytes) const {
    copy_bytes(to, device(), from, Device::cpu(), bytes, stream());
    synchronize(stream());  // the host's array may go away
  }
  void to_host(void* to, const void* from, std::size_t bytes) const {
    copy_bytes(to, Device::cpu(), from, device(), bytes, stream());
    synchronize(stream());
  }

  void set_weights(std::int64_t offset, std::int64_t count, const float* values) {
    layers::set_weights(memory.context(), {.count = count,
                                           .values = values,
                                           .weight_dtype = options.precision.activation,
                                           .master_kind = options.precision.master,
                                           .weight = weights.at(offset),
                                           .master = masters.defined() ? masters.at(offset) : nullptr});
  }

  [[nodiscard]] std::vector<float> as_floats(const Array& array, std::int64_t offset, std::int64_t count) const {
    return as_floats(array.at(offset), array.dtype(), count);
  }
  [[nodiscard]] std::vector<float> as_floats(const void* data, DType dtype, std::int64_t count) const {
    std::vector<float> values(static_cast<std::size_t>(count));
    if (dtype == DType::fp32) {
      to_host(values.data(), data, values.size() * sizeof(float));
      return values;
    }
    const Tensor converted(memory.context(), {count}, DType::fp32);
    layers::convert(memory.context(),
                    {.count = count, .in_dtype = dtype, .out_dtype = DType::fp32, .in = data, .out = converted.data()});
    to_host(values.data(), converted.data(), values.size() * sizeof(float));
    return values;
  }

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

  [[nodiscard]] Array head(const Array& normed) {
    Array out(memory, {"logits", "HEAD_MATMUL"}, rows() * config.vocab, options.precision.activation,
              MemoryKind::logits);
    executor.matmul("HEAD_MATMUL",
                    layers::linear_forward(rows(), config.d_model, config.vocab, options.precision.compute,
                                           options.precision.activation),
                    normed.data(), weights.at(layout.head()), out.data());
    return out;
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
    NormedResidual last = norm_stream(executor, block_context, "FINAL_NORM", weights.at(layout.final_norm()), residual);
    last.residual.reset();
    logits = head(last.normed);
  }

  void forward_backward() {
    WM_CHECK(state.defined(), "prepare_training() comes first");
    gradients.give_back();
    squared = 0;
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
      last = norm_stream(executor, block_context, "FINAL_NORM", weights.at(layout.final_norm()), residual);
      d_logits = options.structure == Structure::fused ? fused_loss(last.normed) : naive_loss(last.normed);
    }
    const StepScope scope("BWD_STEP", memory);
    take_gradients(gradients.head_group());
    Array gradient = head_backward(d_logits, last);
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
    gradients.ready(layout.embedding(), stream());
  }

  void take_gradients(std::size_t group) { gradients.take(memory, group, options.precision.gradient); }

  [[nodiscard]] float loss_share() const { return 1.0f / static_cast<float>(rows() * options.micro_batches); }
  [[nodiscard]] const StepState* scalars() const { return static_cast<const StepState*>(state.data()); }

  void mean_loss(const Array& losses) {
    executor.apply("LOSS_MEAN", OperationKind::loss, layers::mean,
                   layers::Mean{.count = rows(), .values = losses.as<float>(), .out = loss.as<float>()});
  }

  /// One pass for the loss, the gradient written over the logits.
  [[nodiscard]] Array fused_loss(const Array& normed) {
    Array out = head(normed);
    const Array losses(memory, {"losses", "CROSS_ENTROPY"}, rows(), DType::fp32, MemoryKind::logits);
    executor.apply("CROSS_ENTROPY", OperationKind::loss, layers::cross_entropy,
                   layers::CrossEntropy{.rows = rows(),
                                        .vocab = config.vocab,
                                        .dtype = options.precision.activation,
                                        .logits = out.data(),
                                        .stride = config.vocab,
                                        .targets = targets.as<std::int32_t>(),
                                        .losses = losses.as<float>(),
                                        .scale = loss_share(),
                                        .state = scalars()});
    mean_loss(losses);
    return out;
  }

  /// Log-probabilities kept in fp32, as an eager framework does.
  [[nodiscard]] Array naive_loss(const Array& normed) {
    Array out = head(normed);
    const Array log_probabilities(memory, {"log-probabilities", "LOG_SOFTMAX"}, rows() * config.vocab, DType::fp32,
                                  MemoryKind::logits);
    const Array losses(memory, {"losses", "NLL"}, rows(), DType::fp32, MemoryKind::logits);
    executor.apply("LOG_SOFTMAX", OperationKind::loss, layers::log_softmax_forward,
                   layers::LogSoftmaxForward{.rows = rows(),
                                             .vocab = config.vocab,
                                             .dtype = options.precision.activation,
                                             .logits = out.data(),
                                             .out = log_probabilities.as<float>()});
    out.reset();
    executor.apply("NLL", OperationKind::loss, layers::nll_forward,
                   layers::NllForward{.rows = rows(),
                                      .vocab = config.vocab,
                                      .log_probabilities = log_probabilities.as<float>(),
                                      .targets = targets.as<std::int32_t>(),
                                      .losses = losses.as<float>()});
    mean_loss(losses);
    Array d_logits(memory, {"d logits", "LOG_SOFTMAX_BWD"}, rows() * config.vocab, options.precision.activation,
                   MemoryKind::logits);
    executor.apply("LOG_SOFTMAX_BWD", OperationKind::loss, layers::log_softmax_backward,
                   layers::LogSoftmaxBackward{.rows = rows(),
                                              .vocab = config.vocab,
                                              .dtype = options.precision.activation,
                                              .log_probabilities = log_probabilities.as<float>(),
                                              .targets = targets.as<std::int32_t>(),
                                              .scale = loss_share(),
                                              .state = scalars(),
                                              .d_logits = d_logits.data()});
    return d_logits;
  }

  /// The gradient of the residual that left the last block.
  [[nodiscard]] Array head_backward(Array& d_logits, NormedResidual& last) {
    const PrecisionPolicy& p = options.precision;
    if (config.tied_head) take_gradients(gradients.embedding_group());
    if (gradients.wanted(layout.head())) {
      const auto problem = layers::linear_weight_gradient(rows(), config.d_model, config.vocab, p.compute, p.gradient,
                                                          gradients.accumulating());
      executor.matmul_aside("HEAD_BWD_WEIGHT_MATMUL", problem, d_logits.data(), last.normed.data(),
                            gradients.at(layout.head()));
      // The tied one is finished by the embedding.
      if (!config.tied_head) gradients.ready(layout.head(), executor.aside_stream());
    }
    // The normed residual is used up: its gradient takes its place.
    last.normed = executor.made_anew("d normed residual", std::move(last.normed));
    executor.matmul("HEAD_BWD_INPUT_MATMUL",
                    layers::linear_input_gradient(rows(), config.d_model, config.vocab, p.compute, p.activation),
                    d_logits.data(), weights.at(layout.head()), last.normed.data());
    executor.keep(std::move(d_logits));
    Array gradient(memory, {"d residual", "FINAL_NORM_BWD"}, rows() * config.d_model, p.activation,
                   MemoryKind::activations);
    executor.apply_with_workspace("FINAL_NORM_BWD", OperationKind::norm, layers::rmsnorm_backward,
                                  layers::RmsNormBackward{.rows = rows(),
                                                          .width = config.d_model,
                                                          .dtype = p.activation,
                                                          .gradient_dtype = p.gradient,
                                                          .accumulate = gradients.accumulating(),
                                                          .s = last.residual.data(),
                                                          .weight = weights.at(layout.final_norm()),
                                                          .inv_rms = last.inv_rms.as<float>(),
                                                          .d_out = last.normed.data(),
                                                          .d_x = gradient.data(),
                                                          .d_weight = gradients.at(layout.final_norm())});
    gradients.ready(layout.final_norm(), stream());
    last = NormedResidual();
    return gradient;
  }

  /// Trained parameters of those that are asked for, next to one another in every array together where the structure
  /// merges passes.
  template <class Wanted>
  [[nodiscard]] std::vector<Gradients::Run> runs_of(Wanted&& wanted) const {
    std::vector<Gradients::Run> runs;
    const std::vector<Parameter>& parameters = layout.parameters();
    bool open = false;  // the one before is the end of the last run
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const Parameter& p = parameters[i];
      if (!gradients.trainable(i) || !wanted(i)) {
        open = false;
        continue;
      }
      const bool follows = options.structure == Structure::fused && open && gradients.follows(i) &&
                           parameters[i - 1].offset + parameters[i - 1].count() == p.offset &&
                           state_place(i - 1) + parameters[i - 1].count() == state_place(i);
      if (follows) {
        runs.back().count += p.count();
      } else {
        runs.push_back({p.offset, p.count()});
      }
      open = true;
    }
    return runs;
  }
  /// Where the moments of a parameter are, and its masters once state has been given up; -1: nowhere.
  [[nodiscard]] std::int64_t state_place(std::size_t index) const {
    return state_places.empty() ? layout.parameters()[index].offset : state_places[index];
  }

  void square(std::span<const std::size_t> parameters, StreamView where) {
    WM_CHECK(gradients.resident(), "where gradients reside");
    const auto pieces = [](std::int64_t count) {
      const layers::GradientTensor one[] = {{nullptr, count}};
      return layers::SquareSums{.gradients = one}.pieces();
    };
    if (!resident_squares.defined()) {
      std::int64_t end = 0;
      for (std::size_t i = 0; i < layout.parameters().size(); ++i) {
        square_places.push_back(end);
        if (gradients.trainable(i)) end += pieces(layout.parameters()[i].count());
      }
      resident_squares = Array(memory, "squares of gradients", end * std::int64_t{sizeof(double)}, DType::uint8,
                               MemoryKind::workspace);
    }
    if (memory.planning()) return;
    for (const std::size_t i : parameters) {
      const Parameter& p = layout.parameters().at(i);
      const layers::GradientTensor one[] = {{gradients.at(p.offset), p.count()}};
      layers::square_sums({where, memory.context().allocator},
                          {.gradients = one,
                           .dtype = options.precision.gradient,
                           .sums = resident_squares.as<double>() + square_places[i]});
      ++squared;
    }
  }
  [[nodiscard]] bool all_squared() const {
    std::size_t trained = 0;
    for (std::size_t i = 0; i < layout.parameters().size(); ++i) trained += gradients.trainable(i) ? 1 : 0;
    return resident_squares.defined() && squared == trained;
  }

  void begin_update() {
    const PrecisionPolicy& p = options.precision;
    std::vector<layers::GradientTensor> list;
    // Not by what is kept here: the sums' order, and so the norm's bits, are every copy's.
    const auto all = [](std::size_t) { return true; };
    if (gradients.resident()) {
      for (std::size_t i = 0; i < layout.parameters().size(); ++i) {
        const Parameter& parameter = layout.parameters()[i];
        if (gradients.trainable(i)) list.push_back({gradients.at(parameter.offset), parameter.count()});
      }
    } else {
      for (const Gradients::Run& run : runs_of(all)) list.push_back({gradients.at(run.offset), run.count});
    }
    auto* step = static_cast<StepState*>(state.data());
    layers::GradientNorm norm{.gradients = list, .dtype = p.gradient, .max_norm = options.max_norm, .state = step};
    if (all_squared()) {
      norm.squared = true;
      norm.workspace = resident_squares.data();
      executor.apply("GRADIENT_NORM", OperationKind::optimizer, layers::gradient_norm, norm);
      squared = 0;
    } else {
      executor.apply_with_workspace("GRADIENT_NORM", OperationKind::optimizer, layers::gradient_norm, norm);
    }
    if (options.structure == Structure::naive) {
      executor.apply("SCALE_GRADIENTS", OperationKind::optimizer, layers::scale_gradients,
                     layers::ScaleGradients{.gradients = list, .dtype = p.gradient, .state = step});
    }
  }

  template <class Wanted>
  void update(Wanted&& wanted) {
    const PrecisionPolicy& p = options.precision;
    std::vector<layers::AdamwTensor> tensors;
    for (const Gradients::Run& run : runs_of(wanted)) {
      const std::int64_t place = state_place(layout.index_of(run.offset));
      WM_CHECK(place >= 0, "the parameter's state is kept here");
      const std::int64_t master = state_places.empty() ? run.offset : place;
      tensors.push_back({weights.at(run.offset), masters.defined() ? masters.at(master) : nullptr,
                         gradients.at(run.offset), first_moments.at(place), second_moments.at(place), run.count});
    }
    if (tensors.empty()) return;
    executor.apply("ADAMW", OperationKind::optimizer, layers::adamw,
                   layers::AdamwArguments{.tensors = tensors,
                                          .weight_dtype = p.activation,
                                          .master = p.master,
                                          .gradient_dtype = p.gradient,
                                          .moment_dtype = p.moment,
                                          .hyperparameters = options.adamw,
                                          .scale_gradients = options.structure == Structure::fused,
                                          .state = static_cast<StepState*>(state.data())});
  }

  void end_update() {
    executor.apply(
        "FINISH_STEP", OperationKind::optimizer, layers::finish_step,
        layers::FinishStep{.state = static_cast<StepState*>(state.data()), .scaling = options.precision.loss_scaling});
    gradients.give_back();
  }

  void optimizer_step() {
    const StepScope scope("OPTIM_STEP", memory);
    begin_update();
    update([](std::size_t) { return true; });
    end_update();
  }

  /// Packs what is kept as the weights are: joined parameters together, the others aligned.
  void keep_state_of(const std::vector<bool>& kept) {
    WM_CHECK(!state.defined() && kept.size() == layout.parameters().size(), "before prepare_training()");
    std::vector<std::int64_t> places;
    std::int64_t end = 0;
    for (std::size_t i = 0; i < kept.size(); ++i) {
      const Parameter& p = layout.parameters()[i];
      const bool keep = kept[i] && gradients.trainable(i);
      if (keep && !(p.joined && i > 0 && places[i - 1] >= 0)) {
        end = (end + ParameterLayout::kAlignment - 1) / ParameterLayout::kAlignment * ParameterLayout::kAlignment;
      }
      places.push_back(keep ? end : -1);
      if (keep) end += p.count();
    }
    state_places = std::move(places);
    state_elements = std::max<std::int64_t>(end, 1);
    if (!masters.defined()) return;
    Array fewer(memory, "masters", state_elements, masters.dtype(), MemoryKind::parameters);
    if (!memory.planning()) {
      fill_bytes(fewer.data(), device(), 0, bytes_of(fewer), stream());
      for (std::size_t i = 0; i < state_places.size(); ++i) {
        const Parameter& p = layout.parameters()[i];
        if (state_places[i] < 0) continue;
        copy_bytes(fewer.at(state_places[i]), device(), masters.at(p.offset), device(),
                   static_cast<std::size_t>(p.count()) * size_of(masters.dtype()), stream());
      }
      synchronize(stream());
    }
    masters = std::move(fewer);
  }
};

Model::Model(const Context& context, const ModelConfig& config, const ModelOptions& options, bool planning)
    : impl_(std::make_unique<Impl>(context, config, options, planning)) {}
Model::~Model() = default;

void Model::initialize(std::uint64_t seed) {
  Impl& m = *impl_;
  if (m.memory.planning()) return;
  const Context& context = m.memory.context();
  const FrameScope frame("initial values");
  const CategoryScope category(name(MemoryKind::workspace));
  std::uint64_t stream_id = 0;
  for (const Parameter& parameter : m.layout.parameters()) {
    const Tensor values(context, {parameter.count()}, DType::fp32);
    if (parameter.norm) {
      const std::vector<float> ones(static_cast<std::size_t>(parameter.count()), 1.0f);
      m.to_device(values.data(), ones.data(), ones.size() * sizeof(float));
    } else {
      const bool embedding = parameter.offset == m.layout.embedding();
      const double deviation = embedding && !m.config.tied_head
                                   ? 1.0
                                   : std::sqrt(2.0 / static_cast<double>(parameter.rows + parameter.columns));
      fill_normal(values, seed, stream_id, context.stream, static_cast<float>(deviation));
    }
    m.set_weights(parameter.offset, parameter.count(), values.data_as<float>());
    ++stream_id;
  }
}

void Model::set_parameter(std::size_t index, std::span<const float> values) {
  Impl& m = *impl_;
  const Parameter& parameter = m.layout.parameters().at(index);
  WM_CHECK(values.size() == static_cast<std::size_t>(parameter.count()), "as many values as the parameter has");
  const Tensor on_device(m.memory.context(), {parameter.count()}, DType::fp32);
  m.to_device(on_device.data(), values.data(), values.size_bytes());
  m.set_weights(parameter.offset, parameter.count(), on_device.data_as<float>());
}

std::vector<float> Model::parameter(std::size_t index) const {
  const Impl& m = *impl_;
  const Parameter& p = m.layout.parameters().at(index);
  const std::int64_t master = m.state_place(index);
  const MasterKind kind = master < 0 ? MasterKind::none : m.options.precision.master;
  if (kind == MasterKind::copy) return m.as_floats(m.masters, master, p.count());
  std::vector<float> values = m.as_floats(m.weights, p.offset, p.count());
  if (kind == MasterKind::correction) {
    std::vector<std::int16_t> rest(values.size());
    m.to_host(rest.data(), m.masters.at(master), rest.size() * sizeof(std::int16_t));
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::uint32_t bits;
      __builtin_memcpy(&bits, &values[i], sizeof(bits));
      bits = layers::join_master(static_cast<std::uint16_t>(bits >> 16), rest[i]);
      __builtin_memcpy(&values[i], &bits, sizeof(bits));
    }
  }
  return values;
}

std::vector<float> Model::gradient(std::size_t index) const {
  const Parameter& p = impl_->layout.parameters().at(index);
  const Gradients& all = impl_->gradients;
  WM_CHECK(all.available(p.offset), "gradients are there from forward_backward() to optimizer_step()");
  return impl_->as_floats(all.at(p.offset), impl_->options.precision.gradient, p.count());
}

const ParameterLayout& Model::layout() const {
  return impl_->layout;
}

void Model::set_batch(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets) {
  Impl& m = *impl_;
  const auto rows = static_cast<std::size_t>(m.rows());
  WM_CHECK(tokens.size() == rows && targets.size() == rows, "a batch has batch * context tokens and targets");
  if (m.memory.planning()) return;
  m.to_device(m.tokens.data(), tokens.data(), tokens.size_bytes());
  m.to_device(m.targets.data(), targets.data(), targets.size_bytes());
}

void Model::forward() {
  impl_->forward();
}

void Model::prepare_training() {
  Impl& m = *impl_;
  const std::int64_t count = m.state_places.empty() ? m.layout.elements() : m.state_elements;
  m.first_moments = Array(m.memory, "first moments", count, m.options.precision.moment, MemoryKind::optimizer);
  m.second_moments = Array(m.memory, "second moments", count, m.options.precision.moment, MemoryKind::optimizer);
  m.state = Array(m.memory, "step state", sizeof(StepState), DType::uint8, MemoryKind::optimizer);
  m.loss = Array(m.memory, "loss", 1, DType::fp32, MemoryKind::logits);
  if (m.side_by_side()) {
    m.side_workspace = Charge(m.memory, MemoryKind::workspace,
                              Memory::rounded(layers::matmul_workspace_bytes(m.memory.context().device())));
    if (!m.memory.planning()) m.side = std::make_unique<SideLane>(m.memory.context(), *m.matmul);
    m.executor.set_side(m.side.get());
  }
  if (m.memory.planning()) return;
  for (const Array* array : {&m.first_moments, &m.second_moments}) {
    fill_bytes(array->data(), m.device(), 0, Impl::bytes_of(*array), m.stream());
  }
  StepState state;
  state.learning_rate = m.options.learning_rate;
  if (m.options.precision.loss_scaling) state.loss_scale = kInitialLossScale;
  set_step_state(state);
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
  impl_->keep_state_of(kept);
}

void Model::square(std::span<const std::size_t> parameters, StreamView stream) {
  impl_->square(parameters, stream);
}

void Model::begin_update() {
  impl_->begin_update();
}

void Model::update(std::span<const std::size_t> parameters) {
  impl_->update([&](std::size_t i) { return std::binary_search(parameters.begin(), parameters.end(), i); });
}

void Model::end_update() {
  impl_->end_update();
}

const layers::StepState* Model::device_step_state() const {
  return impl_->scalars();
}

void* Model::device_gradient(std::size_t index) const {
  return impl_->gradients.at(impl_->layout.parameters().at(index).offset);
}

bool Model::scales_gradients_in_place() const {
  return impl_->options.structure == Structure::naive;
}

std::vector<Model::WeightArray> Model::weight_arrays() const {
  const Impl& m = *impl_;
  std::vector<WeightArray> arrays{{m.weights.data(), m.weights.count(), m.weights.dtype()}};
  if (m.masters.defined()) arrays.push_back({m.masters.data(), m.masters.count(), m.masters.dtype()});
  return arrays;
}

Model::WeightArray Model::weights_of(std::size_t first, std::size_t last) const {
  const Impl& m = *impl_;
  const Parameter &a = m.layout.parameters().at(first), &b = m.layout.parameters().at(last);
  return {m.weights.at(a.offset), b.offset + b.count() - a.offset, m.weights.dtype()};
}

void Model::drop_logits() {
  impl_->logits.reset();
}

std::vector<float> Model::logits() const {
  return impl_->as_floats(impl_->logits, 0, impl_->logits.count());
}

float Model::loss() const {
  float value;
  impl_->to_host(&value, impl_->loss.data(), sizeof(value));
  return value;
}

layers::StepState Model::step_state() const {
  StepState state;
  impl_->to_host(&state, impl_->state.data(), sizeof(state));
  return state;
}

void Model::set_step_state(const layers::StepState& state) {
  impl_->to_device(impl_->state.data(), &state, sizeof(state));
}

void Model::set_learning_rate(float learning_rate) {
  const std::size_t offset = offsetof(StepState, learning_rate);
  impl_->to_device(static_cast<char*>(impl_->state.data()) + offset, &learning_rate, sizeof(learning_rate));
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
