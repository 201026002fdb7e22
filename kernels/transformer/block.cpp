#include "kernels/transformer/block.hpp"

#include <algorithm>
#include <iterator>

#include "kernels/layers/rmsnorm.hpp"

namespace warpmeter::transformer {

std::string_view name(Structure structure) noexcept {
  return structure == Structure::naive ? "naive" : "fused";
}

attention::AttentionProblem BlockContext::attention_problem() const {
  attention::AttentionProblem problem;
  problem.batch = batch;
  problem.num_heads = problem.num_kv_heads = config.heads;
  problem.seq_len = problem.kv_len = context;
  problem.head_dim = config.head_dim();
  problem.dtype = precision.compute;
  problem.causal = true;
  return problem;
}

const Block& block(Structure structure) {
  return structure == Structure::naive ? naive_block() : fused_block();
}

void weight_gradient(Executor& executor, const BlockContext& context, std::string_view name,
                     std::initializer_list<std::int64_t> places, std::int64_t in, std::int64_t out, const void* d_y,
                     const void* x) {
  const Gradients& gradients = *context.gradients;
  if (std::none_of(places.begin(), places.end(), [&](std::int64_t place) { return gradients.wanted(place); })) return;
  const auto problem = layers::linear_weight_gradient(context.rows(), in, out, context.precision.compute,
                                                      context.precision.gradient, gradients.accumulating());
  executor.matmul_aside(name, problem, d_y, x, gradients.at(*places.begin()));
  for (auto place = std::rbegin(places); place != std::rend(places); ++place) {
    gradients.ready(*place, executor.aside_stream());
  }
}

NormedResidual norm_stream(Executor& executor, const BlockContext& context, std::string_view name, const void* weight,
                           ResidualStream& stream) {
  Memory& memory = executor.memory();
  const std::int64_t rows = context.rows(), width = context.config.d_model;
  NormedResidual result;
  result.normed =
      Array(memory, {"normed residual", name}, rows * width, context.precision.activation, MemoryKind::activations);
  result.inv_rms = Array(memory, {"inverse rms", name}, rows, DType::fp32, MemoryKind::activations);
  result.residual = std::move(stream.current);
  layers::RmsNormForward arguments{.rows = rows, .width = width, .dtype = context.precision.activation};
  arguments.x = result.residual.data();
  if (stream.has_base) {
    arguments.x = stream.base;
    arguments.addend = arguments.sum = result.residual.data();
  }
  arguments.weight = weight;
  arguments.out = result.normed.data();
  arguments.inv_rms = result.inv_rms.as<float>();
  executor.apply(name, OperationKind::norm, layers::rmsnorm_forward, arguments);
  stream = ResidualStream();
  return result;
}

}  // namespace warpmeter::transformer
