#include <fmt/core.h>

#include "kernels/attention/registry.hpp"
#include "kernels/runtime/annotate.hpp"
#include "kernels/runtime/random.hpp"
#include "kernels/runtime/tensor.hpp"
#include "tools/attn_bench/configuration.hpp"
#include "tools/harness/usage_error.hpp"
#include "tools/memsnap/workload.hpp"

namespace warpmeter::memsnap {
namespace {

using attention::as_const;
using attention::operand_bhsd;
using attention::Pass;

/// Forward and, where asked for, backward of one implementation on one problem, as a training step would run them:
/// outputs, what the forward saves and the gradients are allocated anew in every step and given back at its end.
class AttentionWorkload final : public Workload {
 public:
  AttentionWorkload(attn_bench::Configuration configuration, const WorkloadSettings& settings)
      : configuration_(std::move(configuration)),
        settings_(settings),
        implementation_(attention::find_implementation(settings.device.kind, configuration_.impl)) {}

  std::string describe() const override {
    return fmt::format("{} {}, {}", configuration_.impl, attention::describe(configuration_.problem),
                       configuration_.backward ? "forward and backward" : "forward");
  }

  std::string unsupported() const override {
    if (implementation_ == nullptr) {
      return configuration_.impl + " is not in this build for " + (settings_.device.is_cpu() ? "the CPU" : "CUDA");
    }
    if (auto reason = implementation_->unsupported(configuration_.problem, Pass::forward)) return *reason;
    if (!configuration_.backward) return "";
    return implementation_->unsupported(configuration_.problem, Pass::backward).value_or("");
  }

  void prepare(const Context& context) override {
    const CategoryScope category("inputs");
    const FrameScope frame("attention inputs");
    q_ = query_shaped(context);
    k_ = kv_shaped(context);
    v_ = kv_shaped(context);
    std::uint64_t stream = 0;
    for (const Tensor* tensor : {&q_, &k_, &v_}) fill_normal(*tensor, settings_.seed, stream++, context.stream);
  }

  void step(const Context& context) override {
    const auto& problem = configuration_.problem;
    CachingAllocator& allocator = *context.allocator;
    Tensor o, lse;
    std::unique_ptr<attention::Saved> saved;
    {
      const PhaseScope phase(allocator, "FWD_STEP");
      const FrameScope frame("forward");
      const CategoryScope category("activations");
      o = query_shaped(context);
      lse = Tensor(context, {problem.batch, problem.num_heads, problem.seq_len}, DType::fp32);
      // What the forward makes beside its outputs it either saves for the backward or throws away.
      const CategoryScope inner(configuration_.backward ? "activations" : "workspace");
      const attention::ForwardArguments arguments{as_const(operand_bhsd(q_)), as_const(operand_bhsd(k_)),
                                                  as_const(operand_bhsd(v_)), operand_bhsd(o), lse.data_as<float>()};
      saved = implementation_->forward(context, problem, arguments, configuration_.backward);
    }
    if (!configuration_.backward) return;
    const PhaseScope phase(allocator, "BWD_STEP");
    const FrameScope frame("backward");
    const CategoryScope category("gradients");
    const Tensor d_o = query_shaped(context);
    d_o.fill_bytes(0, context.stream);
    const Tensor dq = query_shaped(context), dk = kv_shaped(context), dv = kv_shaped(context);
    const CategoryScope inner("workspace");
    const attention::BackwardArguments arguments{as_const(operand_bhsd(q_)),
                                                 as_const(operand_bhsd(k_)),
                                                 as_const(operand_bhsd(v_)),
                                                 as_const(operand_bhsd(o)),
                                                 as_const(operand_bhsd(d_o)),
                                                 lse.data_as<float>(),
                                                 operand_bhsd(dq),
                                                 operand_bhsd(dk),
                                                 operand_bhsd(dv)};
    implementation_->backward(context, problem, arguments, saved.get());
  }

 private:
  [[nodiscard]] Tensor query_shaped(const Context& context) const {
    const auto& p = configuration_.problem;
    return Tensor(context, {p.batch, p.num_heads, p.seq_len, p.head_dim}, p.dtype);
  }
  [[nodiscard]] Tensor kv_shaped(const Context& context) const {
    const auto& p = configuration_.problem;
    return Tensor(context, {p.batch, p.num_kv_heads, p.kv_len, p.head_dim}, p.dtype);
  }

  attn_bench::Configuration configuration_;
  WorkloadSettings settings_;
  const attention::Implementation* implementation_;
  Tensor q_, k_, v_;
};

void add_attention_options(harness::OptionTable& table) {
  // attn_bench's own, with a default that leaves one configuration; its presets and examples are sweeps.
  harness::OptionTable theirs("attn_bench", "");
  harness::add_shared_options(theirs);
  attn_bench::add_options(theirs);
  for (harness::OptionSpec spec : theirs.specs()) {
    const bool dtype = spec.name == "--dtype";
    // A training step is what is recorded: no serving, but attn_bench asks for the mode.
    if (spec.group.starts_with("Serving") || (!spec.row_option && !dtype)) continue;
    spec.hidden |= spec.name == "--mode";
    if (spec.name == "--impl") spec.default_text = "flash";
    spec.group = "Attention";
    spec.row_option = false;
    table.add(std::move(spec));
  }
  table.add_examples({
      "memsnap record --attention --impl naive --seq-len 4096 -o naive.pickle",
      "memsnap record --attention --impl flash --heads 16 --d-model 1024 --dtype bf16 -o flash.pickle",
  });
}

std::unique_ptr<Workload> make_attention_workload(const harness::OptionTable& table, const WorkloadSettings& settings) {
  harness::Settings of_sweep;
  of_sweep.device = settings.device;
  of_sweep.dtypes = {parse_dtype(table.word("--dtype", harness::kDTypeWords)).value()};
  std::vector<attn_bench::Configuration> configurations = attn_bench::expand(table, of_sweep);
  if (configurations.size() != 1) {
    throw harness::UsageError(
        fmt::format("the options name {} attention configurations; accepted: one value each, since one is recorded",
                    configurations.size()));
  }
  return std::make_unique<AttentionWorkload>(std::move(configurations.front()), settings);
}

}  // namespace

const WorkloadKind kAttentionWorkload = {add_attention_options, make_attention_workload};

}  // namespace warpmeter::memsnap
