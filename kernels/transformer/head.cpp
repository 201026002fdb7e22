#include "kernels/transformer/head.hpp"

#include <utility>

#include "kernels/layers/cross_entropy.hpp"
#include "kernels/layers/rmsnorm.hpp"

namespace warpmeter::transformer {

Head::Head(Executor& executor, const BlockContext& context, const ParameterLayout& layout, Structure structure,
           std::int64_t micro_batches)
    : executor_(executor), context_(context), layout_(layout), structure_(structure), micro_batches_(micro_batches) {}

NormedResidual Head::norm(ResidualStream& residual) const {
  return norm_stream(executor_, context_, "FINAL_NORM", context_.weight(layout_.final_norm()), residual);
}

Array Head::logits(const Array& normed) const {
  const ModelConfig& config = context_.config;
  const PrecisionPolicy& p = context_.precision;
  Array out(executor_.memory(), {"logits", "HEAD_MATMUL"}, rows() * config.vocab, p.activation, MemoryKind::logits);
  executor_.matmul("HEAD_MATMUL", layers::linear_forward(rows(), config.d_model, config.vocab, p.compute, p.activation),
                   normed.data(), context_.weight(layout_.head()), out.data());
  return out;
}

Array Head::loss(const Array& normed, const std::int32_t* targets, const layers::StepState* scalars,
                 float* mean_loss) const {
  return structure_ == Structure::fused ? fused_loss(normed, targets, scalars, mean_loss)
                                        : naive_loss(normed, targets, scalars, mean_loss);
}

Array Head::losses(std::string_view operation) const {
  return {executor_.memory(), {"losses", operation}, rows(), DType::fp32, MemoryKind::logits};
}

void Head::take_mean(const Array& losses, float* mean_loss) const {
  executor_.apply("LOSS_MEAN", OperationKind::loss, layers::mean,
                  layers::Mean{.count = rows(), .values = losses.as<float>(), .out = mean_loss});
}

Array Head::fused_loss(const Array& normed, const std::int32_t* targets, const layers::StepState* scalars,
                       float* mean_loss) const {
  Array out = logits(normed);
  const Array each = losses("CROSS_ENTROPY");
  executor_.apply("CROSS_ENTROPY", OperationKind::loss, layers::cross_entropy,
                  layers::CrossEntropy{.rows = rows(),
                                       .vocab = context_.config.vocab,
                                       .dtype = context_.precision.activation,
                                       .logits = out.data(),
                                       .stride = context_.config.vocab,
                                       .targets = targets,
                                       .losses = each.as<float>(),
                                       .scale = loss_share(),
                                       .state = scalars});
  take_mean(each, mean_loss);
  return out;
}

Array Head::naive_loss(const Array& normed, const std::int32_t* targets, const layers::StepState* scalars,
                       float* mean_loss) const {
  Memory& memory = executor_.memory();
  const std::int64_t vocab = context_.config.vocab;
  const DType type = context_.precision.activation;
  Array out = logits(normed);
  const Array log_probabilities(memory, {"log-probabilities", "LOG_SOFTMAX"}, rows() * vocab, DType::fp32,
                                MemoryKind::logits);
  const Array each = losses("NLL");
  executor_.apply(
      "LOG_SOFTMAX", OperationKind::loss, layers::log_softmax_forward,
      layers::LogSoftmaxForward{
          .rows = rows(), .vocab = vocab, .dtype = type, .logits = out.data(), .out = log_probabilities.as<float>()});
  out.reset();
  executor_.apply("NLL", OperationKind::loss, layers::nll_forward,
                  layers::NllForward{.rows = rows(),
                                     .vocab = vocab,
                                     .log_probabilities = log_probabilities.as<float>(),
                                     .targets = targets,
                                     .losses = each.as<float>()});
  take_mean(each, mean_loss);
  Array d_logits(memory, {"d logits", "LOG_SOFTMAX_BWD"}, rows() * vocab, type, MemoryKind::logits);
  executor_.apply("LOG_SOFTMAX_BWD", OperationKind::loss, layers::log_softmax_backward,
                  layers::LogSoftmaxBackward{.rows = rows(),
                                             .vocab = vocab,
                                             .dtype = type,
                                             .log_probabilities = log_probabilities.as<float>(),
                                             .targets = targets,
                                             .scale = loss_share(),
                                             .state = scalars,
                                             .d_logits = d_logits.data()});
  return d_logits;
}

Array Head::backward(Array d_logits, NormedResidual last) const {
  const ModelConfig& config = context_.config;
  const PrecisionPolicy& p = context_.precision;
  const Gradients& gradients = *context_.gradients;
  if (gradients.wanted(layout_.head())) {
    const auto problem = layers::linear_weight_gradient(rows(), config.d_model, config.vocab, p.compute, p.gradient,
                                                        gradients.accumulating());
    executor_.matmul_aside("HEAD_BWD_WEIGHT_MATMUL", problem, d_logits.data(), last.normed.data(),
                           gradients.at(layout_.head()));
    // The tied one is finished by the embedding.
    if (!config.tied_head) gradients.ready(layout_.head(), executor_.aside_stream());
  }
  // The normed residual is used up: its gradient takes its place.
  last.normed = executor_.made_anew("d normed residual", std::move(last.normed));
  executor_.matmul("HEAD_BWD_INPUT_MATMUL",
                   layers::linear_input_gradient(rows(), config.d_model, config.vocab, p.compute, p.activation),
                   d_logits.data(), context_.weight(layout_.head()), last.normed.data());
  executor_.keep(std::move(d_logits));
  Memory& memory = executor_.memory();
  Array gradient(memory, {"d residual", "FINAL_NORM_BWD"}, rows() * config.d_model, p.activation,
                 MemoryKind::activations);
  executor_.apply_with_workspace("FINAL_NORM_BWD", OperationKind::norm, layers::rmsnorm_backward,
                                 layers::RmsNormBackward{.rows = rows(),
                                                         .width = config.d_model,
                                                         .dtype = p.activation,
                                                         .gradient_dtype = p.gradient,
                                                         .accumulate = gradients.accumulating(),
                                                         .s = last.residual.data(),
                                                         .weight = context_.weight(layout_.final_norm()),
                                                         .inv_rms = last.inv_rms.as<float>(),
                                                         .d_out = last.normed.data(),
                                                         .d_x = gradient.data(),
                                                         .d_weight = gradients.at(layout_.final_norm())});
  gradients.ready(layout_.final_norm(), memory.context().stream);
  return gradient;
}

}  // namespace warpmeter::transformer
