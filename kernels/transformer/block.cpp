#include "kernels/transformer/block.hpp"

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

NormedResidual norm_stream(Executor& executor, const BlockContext& context, std::string_view name, const void* weight,
                           ResidualStream& stream) {
  Memory& memory = executor.memory();
  const std::int64_t rows = context.rows(), width = context.config.d_model;
  NormedResidual result;
  result.normed = Array(memory, "normed residual", rows * width, context.precision.activation, MemoryKind::activations);
  result.inv_rms = Array(memory, "inverse rms", rows, DType::fp32, MemoryKind::activations);
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
