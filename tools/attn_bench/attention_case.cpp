#include "tools/attn_bench/attention_case.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/attention/registry.hpp"
#include "kernels/runtime/random.hpp"

namespace warpmeter::attn_bench {

namespace {

using attention::as_const;
using attention::AttentionProblem;
using attention::BackwardArguments;
using attention::ForwardArguments;
using attention::Implementation;
using attention::operand_bhsd;
using attention::Pass;
using attention::Saved;

constexpr double kMiB = 1024.0 * 1024.0;
constexpr unsigned char kPoison = 0xFF;  // NaN in every floating type

// Random streams of the inputs: the same tensors for every implementation of a problem.
enum InputStream : std::uint64_t { kQueryStream, kKeyStream, kValueStream, kOutputGradientStream };

/// Bytes of one tensor as the allocator counts them.
std::size_t block_bytes(std::int64_t elements, DType dtype) {
  constexpr std::size_t kRounding = 512;
  const std::size_t bytes = static_cast<std::size_t>(elements) * size_of(dtype);
  return (bytes + kRounding - 1) / kRounding * kRounding;
}

std::size_t query_bytes(const AttentionProblem& p) {
  return block_bytes(p.query_elements(), p.dtype);
}
std::size_t kv_bytes(const AttentionProblem& p) {
  return block_bytes(p.kv_elements(), p.dtype);
}
std::size_t lse_bytes(const AttentionProblem& p) {
  return block_bytes(p.lse_elements(), DType::fp32);
}

double mib(std::size_t bytes) {
  return static_cast<double>(bytes) / kMiB;
}

/// The tensors of one problem on the device.
struct Operands {
  Tensor q, k, v, o, lse, d_o, dq, dk, dv;

  [[nodiscard]] ForwardArguments forward_arguments() const {
    return {as_const(operand_bhsd(q)), as_const(operand_bhsd(k)), as_const(operand_bhsd(v)), operand_bhsd(o),
            lse.data_as<float>()};
  }
  [[nodiscard]] BackwardArguments backward_arguments() const {
    return {as_const(operand_bhsd(q)),
            as_const(operand_bhsd(k)),
            as_const(operand_bhsd(v)),
            as_const(operand_bhsd(o)),
            as_const(operand_bhsd(d_o)),
            lse.data_as<float>(),
            operand_bhsd(dq),
            operand_bhsd(dk),
            operand_bhsd(dv)};
  }
};

/// A host copy outside the allocator, so that checking leaves no trace in the memory figures.
std::vector<std::byte> to_host(const Tensor& tensor, StreamView stream) {
  std::vector<std::byte> bytes(tensor.bytes());
  copy_bytes(bytes.data(), Device::cpu(), tensor.data(), tensor.device(), bytes.size(), stream);
  synchronize(stream);
  return bytes;
}

attention::ConstOperand host_operand(const std::vector<std::byte>& bytes, const Tensor& like) {
  attention::ConstOperand operand = as_const(operand_bhsd(like));
  operand.data = bytes.data();
  return operand;
}

Tensor query_shaped(const Context& context, const AttentionProblem& p) {
  return Tensor(context, {p.batch, p.num_heads, p.seq_len, p.head_dim}, p.dtype);
}
Tensor kv_shaped(const Context& context, const AttentionProblem& p) {
  return Tensor(context, {p.batch, p.num_kv_heads, p.kv_len, p.head_dim}, p.dtype);
}

}  // namespace

std::vector<std::string> attention_row_keys() {
  return {"impl",    "dtype",    "pass",    "batch",  "num_heads", "num_kv_heads",
          "d_model", "head_dim", "seq_len", "kv_len", "causal",    "deterministic"};
}

AttentionCase::AttentionCase(Configuration configuration, Device device, std::shared_ptr<ReferenceCache> references)
    : configuration_(std::move(configuration)),
      device_(device),
      implementation_(attention::find_implementation(device.kind, configuration_.impl)),
      references_(std::move(references)) {}

reports::Object AttentionCase::configuration() const {
  const AttentionProblem& p = configuration_.problem;
  reports::Object object;
  object.set("impl", configuration_.impl);
  object.set("dtype", name(p.dtype));
  object.set("pass", configuration_.passes());
  object.set("batch", p.batch);
  object.set("num_heads", p.num_heads);
  object.set("num_kv_heads", p.num_kv_heads);
  object.set("d_model", configuration_.d_model());
  object.set("head_dim", p.head_dim);
  object.set("seq_len", p.seq_len);
  object.set("kv_len", p.kv_len);
  object.set("causal", p.causal);
  object.set("deterministic", p.deterministic);
  return object;
}

std::vector<std::pair<std::string, std::string>> AttentionCase::option_values() const {
  const AttentionProblem& p = configuration_.problem;
  return {{"--impl", configuration_.impl},
          {"--dtype", std::string(name(p.dtype))},
          {"--pass", configuration_.passes()},
          {"--batch", std::to_string(p.batch)},
          {"--heads", std::to_string(p.num_heads)},
          {"--kv-heads", std::to_string(p.num_kv_heads)},
          {"--d-model", std::to_string(configuration_.d_model())},
          {"--seq-len", std::to_string(p.seq_len)},
          {"--kv-len", std::to_string(p.kv_len)},
          {"--causal", p.causal ? "true" : "false"},
          {"--deterministic", p.deterministic ? "true" : "false"}};
}

std::optional<std::string> AttentionCase::unsupported() const {
  if (implementation_ == nullptr) {
    return configuration_.impl + " is not in this build for " + (device_.is_cpu() ? "the CPU" : "CUDA");
  }
  const AttentionProblem& p = configuration_.problem;
  if (auto reason = implementation_->unsupported(p, Pass::forward)) return reason;
  if (configuration_.backward) return implementation_->unsupported(p, Pass::backward);
  return std::nullopt;
}

harness::Prediction AttentionCase::predict() const {
  const AttentionProblem& p = configuration_.problem;
  const attention::MemoryPlan plan = implementation_->memory_plan(p, configuration_.backward);
  const std::size_t inputs = query_bytes(p) + 2 * kv_bytes(p);
  const std::size_t forward_end = inputs + query_bytes(p) + lse_bytes(p);
  const std::size_t before_backward = forward_end + plan.saved + query_bytes(p);
  harness::Prediction prediction;
  prediction.first_phase_bytes = forward_end + plan.forward_peak;
  prediction.peak_bytes = prediction.first_phase_bytes;
  prediction.details.set("fwd_flops", p.forward_flops());
  prediction.details.set("fwd_bytes", p.forward_bytes());
  prediction.details.set("fwd_predicted_peak_mem_mib", mib(prediction.first_phase_bytes));
  if (configuration_.backward) {
    // plan.backward_peak has the saved tensors in it.
    const std::size_t backward_peak =
        before_backward - plan.saved + plan.backward_peak + query_bytes(p) + 2 * kv_bytes(p);
    prediction.peak_bytes = std::max(prediction.peak_bytes, backward_peak);
    prediction.details.set("bwd_flops", p.backward_flops());
    prediction.details.set("bwd_bytes", p.backward_bytes());
    prediction.details.set("bwd_predicted_peak_mem_mib", mib(backward_peak));
  }
  return prediction;
}

void AttentionCase::run(harness::Session& session, reports::Row& row) {
  const AttentionProblem& p = configuration_.problem;
  const Implementation& implementation = *implementation_;
  const Context context = session.context();
  const harness::Settings& settings = session.settings();
  CachingAllocator& allocator = session.allocator();
  reports::Object& figures = row.figures;

  Operands t;
  t.q = query_shaped(context, p);
  t.k = kv_shaped(context, p);
  t.v = kv_shaped(context, p);
  fill_normal(t.q, settings.seed, kQueryStream, context.stream);
  fill_normal(t.k, settings.seed, kKeyStream, context.stream);
  fill_normal(t.v, settings.seed, kValueStream, context.stream);

  const attention::Verifier* verifier = nullptr;
  if (settings.check) {
    std::vector<std::byte> q, k, v, d_o;
    verifier = &references_->get(p, implementation.score_precision(), configuration_.backward, settings.seed, [&] {
      q = to_host(t.q, context.stream);
      k = to_host(t.k, context.stream);
      v = to_host(t.v, context.stream);
      ReferenceCache::Inputs inputs{host_operand(q, t.q), host_operand(k, t.k), host_operand(v, t.v), {}};
      if (configuration_.backward) {
        Tensor gradient = query_shaped(context, p);
        fill_normal(gradient, settings.seed, kOutputGradientStream, context.stream);
        d_o = to_host(gradient, context.stream);
        inputs.d_o = host_operand(d_o, gradient);
      }
      return inputs;
    });
  }

  // Records the comparison; false ends the row as a mismatch.
  double max_error = 0;
  const auto accept = [&](const attention::CheckReport& report) {
    max_error = std::max(max_error, report.max_error());
    figures.set("check", verifier->sampled() ? "sampled rows" : "every element");
    figures.set("max_rel_error", max_error);
    if (report.passed()) return true;
    row.status = reports::Status::mismatch;
    row.reason = report.failure();
    return false;
  };
  const auto measure = [&](const char* phase, Pass pass, double flops, double bytes,
                           const std::function<void()>& work) {
    const harness::Samples samples = session.sampler().measure({work, {}, 1});
    add_statistics(figures, phase, samples);
    const harness::Work amount{flops, bytes, implementation.compute_path(p, pass)};
    if (auto warning = add_rates(figures, phase, samples.statistics().median_ms, amount, session.ceilings())) {
      session.warn(*warning + " (" + configuration_.impl + ", " + describe(p) + ")");
    }
  };

  // Forward.
  figures.set("kernel", implementation.kernel(p, Pass::forward));
  allocator.reset_peak();
  t.o = query_shaped(context, p);
  t.lse = Tensor(context, {p.batch, p.num_heads, p.seq_len}, DType::fp32);
  t.o.fill_bytes(kPoison, context.stream);
  t.lse.fill_bytes(kPoison, context.stream);
  std::unique_ptr<Saved> saved = implementation.forward(context, p, t.forward_arguments(), configuration_.backward);
  synchronize(context.stream);
  figures.set("fwd_peak_mem_mib", mib(allocator.stats().peak.allocated));
  if (verifier != nullptr) {
    const auto o = to_host(t.o, context.stream);
    const auto lse = to_host(t.lse, context.stream);
    attention::HostOutputs outputs;
    outputs.o = host_operand(o, t.o);
    outputs.lse = reinterpret_cast<const float*>(lse.data());
    if (!accept(verifier->check(outputs))) return;
  }
  saved.reset();
  if (configuration_.forward) {
    measure("fwd", Pass::forward, p.forward_flops(), p.forward_bytes(), [&] {
      saved.reset();  // what the previous call kept is given back first, as a training loop does
      saved = implementation.forward(context, p, t.forward_arguments(), configuration_.backward);
    });
  }
  figures.set("fwd_peak_mem_mib", mib(allocator.stats().peak.allocated));
  session.checkpoint(row);  // an isolated process that dies in the backward has told these figures
  if (!configuration_.backward) return;

  // Backward: what is held when it starts is the operands and whatever the forward kept.
  if (!configuration_.forward) {
    saved = implementation.forward(context, p, t.forward_arguments(), true);
  }
  t.d_o = query_shaped(context, p);
  fill_normal(t.d_o, settings.seed, kOutputGradientStream, context.stream);
  synchronize(context.stream);
  figures.set("bwd_kernel", implementation.kernel(p, Pass::backward));
  figures.set("bwd_mem_before_backward_mib", mib(allocator.stats().current.allocated));
  allocator.reset_peak();
  t.dq = query_shaped(context, p);
  t.dk = kv_shaped(context, p);
  t.dv = kv_shaped(context, p);
  for (const Tensor* gradient : {&t.dq, &t.dk, &t.dv}) gradient->fill_bytes(kPoison, context.stream);
  implementation.backward(context, p, t.backward_arguments(), saved.get());
  synchronize(context.stream);
  if (verifier != nullptr) {
    // With o and lse beside them: rows of dk and dv of a large problem are held against those.
    const auto o = to_host(t.o, context.stream);
    const auto lse = to_host(t.lse, context.stream);
    const auto dq = to_host(t.dq, context.stream);
    const auto dk = to_host(t.dk, context.stream);
    const auto dv = to_host(t.dv, context.stream);
    attention::HostOutputs outputs;
    outputs.o = host_operand(o, t.o);
    outputs.lse = reinterpret_cast<const float*>(lse.data());
    outputs.dq = host_operand(dq, t.dq);
    outputs.dk = host_operand(dk, t.dk);
    outputs.dv = host_operand(dv, t.dv);
    if (!accept(verifier->check(outputs))) return;
  }
  measure("bwd", Pass::backward, p.backward_flops(), p.backward_bytes(),
          [&] { implementation.backward(context, p, t.backward_arguments(), saved.get()); });
  figures.set("bwd_peak_mem_mib", mib(allocator.stats().peak.allocated));
}

}  // namespace warpmeter::attn_bench
