#include "tools/attn_bench/mixed_case.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "kernels/attention/decode.hpp"
#include "kernels/attention/prefill.hpp"
#include "kernels/attention/registry.hpp"
#include "kernels/runtime/random.hpp"
#include "tools/harness/sampler.hpp"

namespace warpmeter::attn_bench {

namespace {

using attention::as_const;
using attention::AttentionProblem;
using attention::ConstOperand;
using attention::DecodePlan;
using attention::DecodeProblem;
using attention::KvCache;
using attention::KvView;
using attention::Operand;
using attention::operand_bhsd;
using attention::Pass;
using attention::PrefillPlan;

constexpr double kMiB = 1024.0 * 1024.0;
constexpr unsigned char kPoison = 0xFF;  // NaN in every floating type
constexpr std::int64_t kLaunches = 16;   // of a step, at most
constexpr std::int64_t kMostSteps = 20'000;

// Random streams of the inputs: the same for every implementation.
enum InputStream : std::uint64_t { kQueries, kKeys, kValues, kPromptQueries, kPromptKeys, kPromptValues };

std::size_t block_bytes(std::int64_t elements, DType dtype) {
  constexpr std::size_t kRounding = 512;  // the allocator's
  const std::size_t bytes = static_cast<std::size_t>(elements) * size_of(dtype);
  return (bytes + kRounding - 1) / kRounding * kRounding;
}

/// A host copy outside the allocator, so that checking leaves no trace in the memory figures.
std::vector<std::byte> to_host(const Tensor& tensor, StreamView stream) {
  std::vector<std::byte> bytes(tensor.bytes());
  copy_bytes(bytes.data(), Device::cpu(), tensor.data(), tensor.device(), bytes.size(), stream);
  synchronize(stream);
  return bytes;
}

ConstOperand host_operand(const std::vector<std::byte>& bytes, const Tensor& like) {
  ConstOperand operand = as_const(operand_bhsd(like));
  operand.data = bytes.data();
  return operand;
}

Tensor normal(const Context& context, std::uint64_t seed, InputStream id, DType dtype,
              std::initializer_list<std::int64_t> shape) {
  Tensor tensor(context, shape, dtype);
  fill_normal(tensor, seed, id, context.stream);
  return tensor;
}

/// A view of a cache that is not there yet: for plans and predictions.
struct PlannedView {
  std::vector<std::int64_t> lengths;
  KvView view;
  PlannedView(const attention::KvCacheConfig& config, std::int64_t length)
      : lengths(static_cast<std::size_t>(config.sequences), length) {
    view.dtype = config.dtype;
    view.batch = config.sequences;
    view.num_kv_heads = config.num_kv_heads;
    view.head_dim = config.head_dim;
    view.page_size = config.page_size == 0 ? config.capacity : config.page_size;
    view.row_stride = config.head_dim;
    view.head_stride = view.page_size * config.head_dim;
    view.page_stride = view.head_stride * config.num_kv_heads;
    view.page_count = config.sequences * ((config.capacity + view.page_size - 1) / view.page_size);
    view.host_lengths = lengths;
    view.paged = config.page_size != 0;
  }
};

/// The batch, the prompt, and what a step does.
class Engine {
 public:
  Engine(const Context& context, const MixedConfiguration& c, const attention::Implementation* implementation,
         std::uint64_t seed)
      : context_(context),
        c_(c),
        implementation_(implementation),
        q_(normal(context, seed, kQueries, c.dtype, {c.batch, c.num_heads, 1, c.head_dim})),
        o_(context, {c.batch, c.num_heads, 1, c.head_dim}, c.dtype),
        lse_(context, {c.batch, c.num_heads, 1}, DType::fp32),
        prompt_q_(normal(context, seed, kPromptQueries, c.dtype, {1, c.num_heads, c.seq_len, c.head_dim})),
        prompt_k_(normal(context, seed, kPromptKeys, c.dtype, {1, c.num_kv_heads, c.seq_len, c.head_dim})),
        prompt_v_(normal(context, seed, kPromptValues, c.dtype, {1, c.num_kv_heads, c.seq_len, c.head_dim})),
        prompt_o_(context, {1, c.num_heads, c.seq_len, c.head_dim}, c.dtype),
        prompt_lse_(context, {1, c.num_heads, std::min(c.chunk, c.seq_len)}, DType::fp32),
        cache_(context, c.decode_cache()),
        prompt_cache_(context, c.prompt_cache()) {
    const DecodeProblem decoding{c.num_heads, 1, c.dtype};
    k_ = normal(context, seed, kKeys, c.dtype, {c.batch, c.num_kv_heads, c.kv_len, c.head_dim});
    v_ = normal(context, seed, kValues, c.dtype, {c.batch, c.num_kv_heads, c.kv_len, c.head_dim});
    cache_.append(context, storage_of(c.dtype), as_const(operand_bhsd(k_)), as_const(operand_bhsd(v_)), c.kv_len);
    synchronize(context.stream);
    if (c.flash()) decode_plan_ = plan_decode(context.device(), decoding, cache_.view());
  }

  /// Inputs of the decoding, for a reference; given back by forget_inputs().
  [[nodiscard]] const Tensor& q() const { return q_; }
  [[nodiscard]] const Tensor& k() const { return k_; }
  [[nodiscard]] const Tensor& v() const { return v_; }
  [[nodiscard]] const Tensor& o() const { return o_; }
  [[nodiscard]] const Tensor& prompt_q() const { return prompt_q_; }
  [[nodiscard]] const Tensor& prompt_k() const { return prompt_k_; }
  [[nodiscard]] const Tensor& prompt_v() const { return prompt_v_; }
  [[nodiscard]] const Tensor& prompt_o() const { return prompt_o_; }
  void forget_inputs() {
    k_.reset();
    v_.reset();
  }
  void poison() {
    o_.fill_bytes(kPoison, context_.stream);
    prompt_o_.fill_bytes(kPoison, context_.stream);
  }

  [[nodiscard]] std::string kernel() const { return plan_.kernel; }
  [[nodiscard]] std::string decode_kernel() const {
    return c_.flash() ? decode_plan_.kernel : implementation_->kernel(c_.decode_problem(), Pass::forward);
  }

  /// The next chunk's keys and values go into the prompt's cache, which starts anew behind the last chunk.
  void next() {
    if (first_ + tokens_ >= c_.seq_len) {
      prompt_cache_.reset(context_);
      first_ = tokens_ = 0;
    }
    first_ += tokens_;
    tokens_ = std::min(c_.chunk, c_.seq_len - first_);
    prompt_cache_.append(context_, storage_of(c_.dtype), rows(prompt_k_), rows(prompt_v_), tokens_);
    plan_ = plan_prefill(context_.device(), prefilling(), prompt_cache_.view(), {implementation_, 0});
  }

  void decode() const {
    const KvView view = cache_.view();
    if (c_.flash()) {
      flash_decode(context_, {c_.num_heads, 1, c_.dtype}, view, decode_plan_, as_const(operand_bhsd(q_)),
                   operand_bhsd(o_), lse_.data_as<float>());
      return;
    }
    const ConstOperand k{view.k, view.page_stride, view.head_stride, view.row_stride};
    const ConstOperand v{view.v, view.page_stride, view.head_stride, view.row_stride};
    (void)implementation_->forward(context_, c_.decode_problem(),
                                   {as_const(operand_bhsd(q_)), k, v, operand_bhsd(o_), lse_.data_as<float>()}, false);
  }

  void step() const {
    decode();
    Operand out = operand_bhsd(prompt_o_);
    out.data = static_cast<char*>(out.data) + offset();
    prefill_attention(context_, prefilling(), prompt_cache_.view(), plan_, rows(prompt_q_), out,
                      prompt_lse_.data_as<float>());
  }

 private:
  [[nodiscard]] DecodeProblem prefilling() const { return {c_.num_heads, tokens_, c_.dtype}; }
  [[nodiscard]] std::int64_t offset() const {
    return first_ * c_.head_dim * static_cast<std::int64_t>(size_of(c_.dtype));
  }
  [[nodiscard]] ConstOperand rows(const Tensor& tensor) const {
    ConstOperand operand = as_const(operand_bhsd(tensor));
    operand.data = static_cast<const char*>(operand.data) + offset();
    return operand;
  }

  Context context_;
  MixedConfiguration c_;
  const attention::Implementation* implementation_;
  Tensor q_, o_, lse_, prompt_q_, prompt_k_, prompt_v_, prompt_o_, prompt_lse_, k_, v_;
  KvCache cache_, prompt_cache_;
  DecodePlan decode_plan_;
  PrefillPlan plan_;
  std::int64_t first_ = 0, tokens_ = 0;  // of the current chunk; none yet
};

}  // namespace

MixedCase::MixedCase(MixedConfiguration configuration, Device device, std::shared_ptr<MixedShared> shared)
    : configuration_(std::move(configuration)),
      device_(device),
      implementation_(attention::find_implementation(device.kind, configuration_.impl)),
      shared_(std::move(shared)) {}

reports::Object MixedCase::configuration() const {
  const MixedConfiguration& c = configuration_;
  reports::Object object = c.fields("mixed");
  object.set("kv_len", c.kv_len);
  object.set("seq_len", c.seq_len);
  object.set("chunk", c.chunk);
  object.set("page_size", c.page_size);
  return object;
}

std::vector<std::pair<std::string, std::string>> MixedCase::option_values() const {
  const MixedConfiguration& c = configuration_;
  auto values = c.option_values("mixed");
  values.insert(values.end(), {{"--kv-len", std::to_string(c.kv_len)},
                               {"--seq-len", std::to_string(c.seq_len)},
                               {"--chunk", std::to_string(c.chunk)},
                               {"--page-size", std::to_string(c.page_size)}});
  return values;
}

std::optional<std::string> MixedCase::unsupported() const {
  const MixedConfiguration& c = configuration_;
  if (implementation_ == nullptr) {
    return c.impl + " is not in this build for " + (device_.is_cpu() ? "the CPU" : "CUDA");
  }
  if (c.dtype == DType::tf32) return "a KV cache holds fp32, bf16 or fp16";
  for (const attention::KvCacheConfig& cache : {c.decode_cache(), c.prompt_cache()}) {
    if (auto reason = attention::unsupported(device_.kind, cache)) return reason;
  }
  if (!c.flash() && c.page_size != 0) return c.impl + " decodes from contiguous memory only";
  if (auto reason = implementation_->unsupported(c.prompt_problem(), Pass::forward)) return reason;
  return c.flash() ? std::nullopt : implementation_->unsupported(c.decode_problem(), Pass::forward);
}

harness::Prediction MixedCase::predict() const {
  const MixedConfiguration& c = configuration_;
  const AttentionProblem decoding = c.decode_problem(), prompt = c.prompt_problem();
  const PlannedView batch(c.decode_cache(), c.kv_len), whole(c.prompt_cache(), c.seq_len);
  const std::int64_t last = c.seq_len - (c.steps() - 1) * c.chunk;
  std::size_t workspace = c.flash() ? plan_decode(device_, {c.num_heads, 1, c.dtype}, batch.view).workspace_bytes
                                    : implementation_->memory_plan(decoding, false).forward_peak;
  workspace = std::max(
      workspace, plan_prefill(device_, {c.num_heads, last, c.dtype}, whole.view, {implementation_, 0}).workspace_bytes);
  if (c.steps() > 1) {  // the last whole chunk
    const PlannedView before(c.prompt_cache(), (c.steps() - 1) * c.chunk);
    workspace = std::max(
        workspace,
        plan_prefill(device_, {c.num_heads, c.chunk, c.dtype}, before.view, {implementation_, 0}).workspace_bytes);
  }
  harness::Prediction prediction;
  prediction.peak_bytes =
      2 * block_bytes(decoding.query_elements(), c.dtype) + block_bytes(decoding.lse_elements(), DType::fp32) +
      2 * block_bytes(prompt.query_elements(), c.dtype) + 2 * block_bytes(prompt.kv_elements(), c.dtype) +
      block_bytes(c.num_heads * std::min(c.chunk, c.seq_len), DType::fp32) + KvCache::bytes(c.decode_cache()) +
      KvCache::bytes(c.prompt_cache()) + std::max(2 * block_bytes(decoding.kv_elements(), c.dtype), workspace);
  prediction.first_phase_bytes = prediction.peak_bytes;
  prediction.details.set("decode_bytes", decoding.forward_bytes());
  prediction.details.set("prefill_flops", prompt.forward_flops());
  prediction.details.set("predicted_peak_mem_mib", static_cast<double>(prediction.peak_bytes) / kMiB);
  return prediction;
}

void MixedCase::run(harness::Session& session, reports::Row& row) {
  const MixedConfiguration& c = configuration_;
  const AttentionProblem decoding = c.decode_problem(), prompt = c.prompt_problem();
  const Context context = session.context();
  const harness::Settings& settings = session.settings();
  reports::Object& figures = row.figures;

  session.allocator().reset_peak();
  Engine engine(context, c, implementation_, settings.seed);
  const auto verifier = [&](const AttentionProblem& problem, attention::ScorePrecision scores, const Tensor& q,
                            const Tensor& k, const Tensor& v) -> const attention::Verifier& {
    const bool stored = is_16bit(c.dtype) && scores == attention::ScorePrecision::storage;
    const std::string key = describe(problem) + (stored ? " stored" : "");
    auto found = shared_->verifiers.find(key);
    if (found == shared_->verifiers.end()) {
      const auto host_q = to_host(q, context.stream), host_k = to_host(k, context.stream),
                 host_v = to_host(v, context.stream);
      found = shared_->verifiers
                  .emplace(key, attention::Verifier(problem, scores, host_operand(host_q, q), host_operand(host_k, k),
                                                    host_operand(host_v, v), {}, settings.seed))
                  .first;
    }
    return found->second;
  };
  const attention::Verifier *of_decoding = nullptr, *of_prompt = nullptr;
  if (settings.check) {
    const auto scores = implementation_->score_precision();
    of_decoding =
        &verifier(decoding, c.flash() ? attention::ScorePrecision::fp32 : scores, engine.q(), engine.k(), engine.v());
    of_prompt = &verifier(prompt, scores, engine.prompt_q(), engine.prompt_k(), engine.prompt_v());
  }
  engine.forget_inputs();

  // A prompt from its first chunk to its last: both results, and about how long it takes.
  const auto prompt_once = [&] {
    for (std::int64_t i = 0; i < c.steps(); ++i) {
      engine.next();
      engine.step();
    }
    synchronize(context.stream);
  };
  engine.poison();
  prompt_once();
  figures.set("kernel", engine.kernel());
  figures.set("decode_kernel", engine.decode_kernel());
  figures.set("steps_a_prompt", c.steps());
  figures.set("peak_mem_mib", static_cast<double>(session.allocator().stats().peak.allocated) / kMiB);
  if (settings.check) {
    double error = 0;
    for (const auto& [which, tensor] :
         {std::pair{of_decoding, &engine.o()}, std::pair{of_prompt, &engine.prompt_o()}}) {
      const auto bytes = to_host(*tensor, context.stream);
      attention::HostOutputs outputs;
      outputs.o = host_operand(bytes, *tensor);
      const attention::CheckReport report = which->check(outputs);
      error = std::max(error, report.max_error());
      figures.set("check", of_decoding->sampled() || of_prompt->sampled() ? "sampled rows" : "every element");
      figures.set("max_rel_error", error);
      if (!report.passed()) {
        row.status = reports::Status::mismatch;
        row.reason = std::string(which == of_decoding ? "decoding: " : "prefill: ") + report.failure();
        return;
      }
    }
  }

  const harness::Samples alone = session.sampler().measure({[&] { engine.decode(); }, {}, kLaunches});
  add_statistics(figures, "decode_alone", alone);
  session.checkpoint(row);

  const auto begin = std::chrono::steady_clock::now();
  prompt_once();
  const double prompt_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  harness::Settings whole_prompts = settings;
  if (!settings.steps) {
    const double prompts = std::clamp(std::ceil(settings.max_time_s / std::max(prompt_s, 1e-6)), 1.0,
                                      std::max(1.0, static_cast<double>(kMostSteps / c.steps())));
    whole_prompts.steps = static_cast<std::int64_t>(prompts) * c.steps();
  }
  harness::Sampler sampler(context, whole_prompts, [&](const std::string& text) { session.warn(text); });
  const harness::Samples samples = sampler.measure({[&] { engine.step(); }, [&] { engine.next(); }, kLaunches});
  add_statistics(figures, "tpot", samples);
  const harness::Statistics statistics = samples.statistics();
  const auto steps = static_cast<double>(c.steps());
  harness::Work amount{decoding.forward_flops() + prompt.forward_flops() / steps, decoding.forward_bytes(),
                       implementation_->compute_path(prompt, Pass::forward)};
  // Every chunk reads the keys so far.
  for (std::int64_t i = 1; i <= c.steps(); ++i) {
    AttentionProblem chunk = prompt;
    chunk.kv_len = std::min(i * c.chunk, c.seq_len);
    chunk.seq_len = chunk.kv_len - (i - 1) * c.chunk;
    amount.bytes += chunk.forward_bytes() / steps;
  }
  if (auto warning = add_rates(figures, "tpot", statistics.mean_ms, amount, session.ceilings())) {
    session.warn(*warning + " (" + c.impl + ", " + describe(prompt) + ")");
  }
  figures.set("slowdown", statistics.median_ms / alone.statistics().median_ms);
  figures.set("decode_tokens_per_s", static_cast<double>(c.batch) / (statistics.mean_ms * 1e-3));
  figures.set("prefill_tokens_per_s", static_cast<double>(c.seq_len) / steps / (statistics.mean_ms * 1e-3));
}

}  // namespace warpmeter::attn_bench
