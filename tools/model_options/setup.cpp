#include "tools/model_options/setup.hpp"

#include <vector>

#include "kernels/attention/registry.hpp"
#include "kernels/layers/available.hpp"
#include "kernels/runtime/random.hpp"

namespace warpmeter::model_options {

namespace {

// Random streams beside those of the parameters, which count from 0.
enum BatchStream : std::uint64_t { kTokenStream = std::uint64_t{1} << 32, kTargetStream };

std::vector<std::int32_t> random_tokens(const ModelSetup& setup, std::uint64_t seed, std::uint64_t stream_id) {
  // On the host: the same tokens for every device.
  CachingAllocator allocator(Device::cpu());
  const Context context{{Device::cpu(), nullptr}, &allocator};
  const Tensor tokens(context, {setup.tokens()}, DType::int32);
  fill_integers(tokens, seed, stream_id, context.stream, setup.model.vocab);
  const auto* data = tokens.data_as<std::int32_t>();
  return {data, data + setup.tokens()};
}

}  // namespace

const attention::Implementation* ModelSetup::implementation(Device device) const {
  return attention::find_implementation(device.kind, attention);
}

attention::AttentionProblem ModelSetup::problem() const {
  attention::AttentionProblem problem;
  problem.batch = batch;
  problem.num_heads = problem.num_kv_heads = model.heads;
  problem.seq_len = problem.kv_len = context;
  problem.head_dim = model.head_dim();
  problem.dtype = precision.compute;
  problem.causal = true;
  return problem;
}

transformer::ModelOptions ModelSetup::options(Device device) const {
  transformer::ModelOptions options;
  options.precision = precision;
  options.structure = structure;
  options.attention = implementation(device);
  options.recompute = recompute;
  options.batch = batch;
  options.context = context;
  options.adamw.definition = adamw;
  options.learning_rate = static_cast<float>(learning_rate);
  return options;
}

std::optional<std::string> unsupported(const ModelSetup& setup, Device device, bool training) {
  const char* where = device.is_cpu() ? "the CPU" : "CUDA";
  if (!layers::available(device.kind)) return std::string("this build has no model operations for ") + where;
  if (device.is_cpu() && setup.precision.compute == DType::tf32) return "tf32 is a CUDA compute mode";
  const attention::Implementation* implementation = setup.implementation(device);
  if (implementation == nullptr) return "attention " + setup.attention + " is not in this build for " + where;
  const attention::AttentionProblem problem = setup.problem();
  if (auto reason = implementation->unsupported(problem, attention::Pass::forward)) return reason;
  if (training) return implementation->unsupported(problem, attention::Pass::backward);
  return std::nullopt;
}

void set_random_batch(transformer::Model& model, const ModelSetup& setup, std::uint64_t seed) {
  model.set_batch(random_tokens(setup, seed, kTokenStream), random_tokens(setup, seed, kTargetStream));
}

}  // namespace warpmeter::model_options
