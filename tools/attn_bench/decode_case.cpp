#include "tools/attn_bench/decode_case.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "kernels/attention/detail/row_ops.hpp"
#include "kernels/attention/prefill.hpp"
#include "kernels/attention/registry.hpp"
#include "kernels/runtime/random.hpp"

namespace warpmeter::attn_bench {

namespace {

using attention::as_const;
using attention::AttentionProblem;
using attention::DecodeOptions;
using attention::DecodePlan;
using attention::DecodeProblem;
using attention::KvCache;
using attention::KvView;
using attention::Merge;
using attention::operand_bhsd;
using attention::Pass;

constexpr double kMiB = 1024.0 * 1024.0;
constexpr unsigned char kPoison = 0xFF;  // NaN in every floating type

// Random streams of the inputs: the same tensors for every implementation of a problem.
enum InputStream : std::uint64_t { kQueryStream, kKeyStream, kValueStream };

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

attention::ConstOperand host_operand(const std::vector<std::byte>& bytes, const Tensor& like) {
  attention::ConstOperand operand = as_const(operand_bhsd(like));
  operand.data = bytes.data();
  return operand;
}

std::vector<float> floats_of(const std::vector<std::byte>& bytes, DType dtype) {
  std::vector<float> values(bytes.size() / size_of(dtype));
  attention::detail::row_ops(storage_of(dtype))
      .to_float(bytes.data(), values.data(), static_cast<std::int64_t>(values.size()));
  return values;
}

void fill(const Tensor& tensor, std::int64_t value_range, std::uint64_t seed, InputStream id, StreamView stream) {
  if (value_range == 0) {
    fill_normal(tensor, seed, id, stream);
  } else {
    const auto bound = static_cast<float>(value_range);
    fill_uniform(tensor, seed, id, stream, -bound, bound);
  }
}

/// A view of a full cache that is not there yet: for plans and predictions.
struct PlannedView {
  std::vector<std::int64_t> lengths;
  KvView view;
  explicit PlannedView(const DecodeConfiguration& c) : lengths(static_cast<std::size_t>(c.batch), c.kv_len) {
    view.dtype = storage_of(c.dtype);
    view.batch = c.batch;
    view.num_kv_heads = c.num_kv_heads;
    view.head_dim = c.head_dim;
    view.page_size = c.page_size == 0 ? c.kv_len : c.page_size;
    view.row_stride = c.head_dim;
    view.head_stride = view.page_size * c.head_dim;
    view.page_stride = view.head_stride * c.num_kv_heads;
    view.page_count = c.batch * ((c.kv_len + view.page_size - 1) / view.page_size);
    view.host_lengths = lengths;
    view.paged = c.page_size != 0;
  }
};

/// "auto" for 0.
std::string or_auto(std::int64_t value) {
  return value == 0 ? "auto" : std::to_string(value);
}

/// The tensors of a row.
struct Operands {
  Tensor q, o, lse;
  Tensor k, v;                     // dense, of an implementation
  std::unique_ptr<KvCache> cache;  // of flash_decode
};

}  // namespace

std::vector<std::string> decode_row_keys() {
  return {"mode",   "impl",   "dtype", "batch", "num_heads", "num_kv_heads", "d_model",   "head_dim",
          "kv_len", "tokens", "merge", "deal",  "splits",    "block",        "page_size", "value_range"};
}

reports::TableLayout decode_layout() {
  reports::TableLayout layout;
  layout.group_by = {"impl", "dtype"};
  layout.columns = {"kv_len",        "splits_used",   "decode_ms",        "tokens_per_s", "decode_gbps", "read_share",
                    "max_abs_error", "max_rel_error", "merge_difference", "speedup",      "status"};
  layout.wide_columns = {"batch",  "num_heads",   "num_kv_heads", "d_model",  "head_dim",   "tokens",
                         "merge",  "deal",        "splits",       "block",    "block_used", "page_size",
                         "kernel", "value_range", "nan_count",    "inf_count"};
  for (const char* figure :
       {"mean_ms", "min_ms", "p95_ms", "p99_ms", "stdev_ms", "noise", "n", "stop", "tflops", "bound", "bound_share"}) {
    layout.wide_columns.push_back(std::string("decode_") + figure);
  }
  layout.wide_columns.insert(layout.wide_columns.end(), {"decode_peak_mem_mib", "check"});
  return layout;
}

DecodeCase::DecodeCase(DecodeConfiguration configuration, Device device, std::shared_ptr<DecodeShared> shared)
    : configuration_(std::move(configuration)),
      device_(device),
      implementation_(configuration_.cached() ? nullptr
                                              : attention::find_implementation(device.kind, configuration_.impl)),
      shared_(std::move(shared)) {}

reports::Object DecodeCase::configuration() const {
  const DecodeConfiguration& c = configuration_;
  const std::string none = "-";  // an implementation has no streams to deal out
  reports::Object object = c.fields("decode");
  object.set("kv_len", c.kv_len);
  object.set("tokens", c.tokens);
  object.set("merge", c.flash_decode() ? std::string(name(c.options.merge)) : none);
  object.set("deal", c.flash_decode() ? std::string(name(c.options.deal)) : none);
  object.set("splits", c.cached() ? or_auto(c.options.splits) : none);
  object.set("block", c.flash_decode() ? or_auto(c.options.block) : none);
  object.set("page_size", c.page_size);
  object.set("value_range", c.value_range);
  return object;
}

std::vector<std::pair<std::string, std::string>> DecodeCase::option_values() const {
  const DecodeConfiguration& c = configuration_;
  auto values = c.option_values("decode");
  values.insert(values.end(), {{"--kv-len", std::to_string(c.kv_len)},
                               {"--tokens", std::to_string(c.tokens)},
                               {"--merge", std::string(name(c.options.merge))},
                               {"--deal", std::string(name(c.options.deal))},
                               {"--splits", or_auto(c.options.splits)},
                               {"--block", or_auto(c.options.block)},
                               {"--page-size", std::to_string(c.page_size)},
                               {"--value-range", std::to_string(c.value_range)}});
  return values;
}

std::optional<std::string> DecodeCase::unsupported() const {
  const DecodeConfiguration& c = configuration_;
  if (!c.cached()) {
    if (implementation_ == nullptr) {
      return c.impl + " is not in this build for " + (device_.is_cpu() ? "the CPU" : "CUDA");
    }
    return implementation_->unsupported(c.attention_problem(), Pass::forward);
  }
  if (device_.is_cuda() && !attention::decodes_on_cuda()) return c.impl + " is not in this build for CUDA";
  if (auto reason = attention::unsupported(device_.kind, c.cache())) return reason;
  if (auto reason = attention::unsupported(device_.kind, c.options)) return reason;
  const PlannedView planned(c);
  if (std::string reason = invalid_reason(c.decode_problem(), planned.view); !reason.empty()) return reason;
  return std::nullopt;
}

harness::Prediction DecodeCase::predict() const {
  const DecodeConfiguration& c = configuration_;
  const AttentionProblem p = c.attention_problem();
  const PlannedView planned(c);
  const std::size_t dense = 2 * block_bytes(p.kv_elements(), c.dtype);
  const std::size_t queries = 2 * block_bytes(p.query_elements(), c.dtype) + block_bytes(p.lse_elements(), DType::fp32);
  harness::Prediction prediction;
  if (c.cached()) {
    const std::size_t workspace =
        c.flash_decode()
            ? plan_decode(device_, c.decode_problem(), planned.view, c.options).workspace_bytes
            : plan_prefill(device_, c.decode_problem(), planned.view, {nullptr, c.options.splits}).workspace_bytes;
    // While the cache is filled keys and values are there twice.
    prediction.peak_bytes = queries + KvCache::bytes(c.cache()) + std::max(dense, workspace);
  } else {
    prediction.peak_bytes = queries + dense + implementation_->memory_plan(p, false).forward_peak;
  }
  prediction.first_phase_bytes = prediction.peak_bytes;
  prediction.details.set("decode_flops", decode_flops(c.decode_problem(), planned.view));
  prediction.details.set("decode_bytes", decode_bytes(c.decode_problem(), planned.view));
  prediction.details.set("decode_predicted_peak_mem_mib", static_cast<double>(prediction.peak_bytes) / kMiB);
  return prediction;
}

void DecodeCase::run(harness::Session& session, reports::Row& row) {
  const DecodeConfiguration& c = configuration_;
  const AttentionProblem p = c.attention_problem();
  const DecodeProblem problem = c.decode_problem();
  const Context context = session.context();
  const harness::Settings& settings = session.settings();
  CachingAllocator& allocator = session.allocator();
  reports::Object& figures = row.figures;

  Operands t;
  t.q = Tensor(context, {c.batch, c.num_heads, c.tokens, c.head_dim}, c.dtype);
  t.k = Tensor(context, {c.batch, c.num_kv_heads, c.kv_len, c.head_dim}, c.dtype);
  t.v = Tensor(context, {c.batch, c.num_kv_heads, c.kv_len, c.head_dim}, c.dtype);
  t.o = Tensor(context, {c.batch, c.num_heads, c.tokens, c.head_dim}, c.dtype);
  t.lse = Tensor(context, {c.batch, c.num_heads, c.tokens}, DType::fp32);
  fill(t.q, c.value_range, settings.seed, kQueryStream, context.stream);
  fill(t.k, c.value_range, settings.seed, kKeyStream, context.stream);
  fill(t.v, c.value_range, settings.seed, kValueStream, context.stream);

  const attention::Verifier* verifier = nullptr;
  if (settings.check) {
    const auto scores = c.cached() ? attention::ScorePrecision::fp32 : implementation_->score_precision();
    const bool stored = is_16bit(c.dtype) && scores == attention::ScorePrecision::storage;
    const std::string key = c.problem_key() + (stored ? " stored" : "");
    auto found = shared_->verifiers.find(key);
    if (found == shared_->verifiers.end()) {
      const auto q = to_host(t.q, context.stream);
      const auto k = to_host(t.k, context.stream);
      const auto v = to_host(t.v, context.stream);
      found = shared_->verifiers
                  .emplace(key, attention::Verifier(p, scores, host_operand(q, t.q), host_operand(k, t.k),
                                                    host_operand(v, t.v), {}, settings.seed))
                  .first;
    }
    verifier = &found->second;
  }

  KvView view;
  if (c.cached()) {
    t.cache = std::make_unique<KvCache>(context, c.cache());
    t.cache->append(context, storage_of(c.dtype), as_const(operand_bhsd(t.k)), as_const(operand_bhsd(t.v)), c.kv_len);
    synchronize(context.stream);
    t.k.reset();
    t.v.reset();
    view = t.cache->view();
  }
  const auto decode = [&](const DecodePlan& plan) {
    flash_decode(context, problem, view, plan, as_const(operand_bhsd(t.q)), operand_bhsd(t.o), t.lse.data_as<float>());
  };
  DecodePlan plan;
  attention::PrefillPlan prefill;
  std::function<void()> work;
  if (c.flash_decode()) {
    plan = plan_decode(device_, problem, view, c.options);
    figures.set("kernel", plan.kernel);
    figures.set("splits_used", plan.splits);
    figures.set("block_used", plan.block);
    work = [&] { decode(plan); };
  } else if (c.flash_prefill()) {
    prefill = plan_prefill(device_, problem, view, {nullptr, c.options.splits});
    figures.set("kernel", prefill.kernel);
    figures.set("splits_used", prefill.key_splits);
    work = [&] {
      prefill_attention(context, problem, view, prefill, as_const(operand_bhsd(t.q)), operand_bhsd(t.o),
                        t.lse.data_as<float>());
    };
  } else {
    figures.set("kernel", implementation_->kernel(p, Pass::forward));
    work = [&] {
      (void)implementation_->forward(context, p,
                                     {as_const(operand_bhsd(t.q)), as_const(operand_bhsd(t.k)),
                                      as_const(operand_bhsd(t.v)), operand_bhsd(t.o), t.lse.data_as<float>()},
                                     false);
    };
  }

  const auto run_once = [&](const std::function<void()>& call) {
    t.o.fill_bytes(kPoison, context.stream);
    t.lse.fill_bytes(kPoison, context.stream);
    call();
    synchronize(context.stream);
    return to_host(t.o, context.stream);
  };
  allocator.reset_peak();
  const std::vector<std::byte> o = run_once(work);
  figures.set("decode_peak_mem_mib", static_cast<double>(allocator.stats().peak.allocated) / kMiB);
  const std::vector<float> values = floats_of(o, c.dtype);
  figures.set("nan_count", static_cast<std::int64_t>(
                               std::count_if(values.begin(), values.end(), [](float x) { return std::isnan(x); })));
  figures.set("inf_count", static_cast<std::int64_t>(
                               std::count_if(values.begin(), values.end(), [](float x) { return std::isinf(x); })));
  if (verifier != nullptr) {
    const auto lse = to_host(t.lse, context.stream);
    attention::HostOutputs outputs;
    outputs.o = host_operand(o, t.o);
    outputs.lse = reinterpret_cast<const float*>(lse.data());
    const attention::CheckReport report = verifier->check(outputs);
    figures.set("check", verifier->sampled() ? "sampled rows" : "every element");
    for (const attention::OutputCheck& output : report.outputs) {
      if (output.output != "o") continue;
      figures.set("max_abs_error", output.max_error);
      figures.set("max_rel_error", output.max_error / output.max_reference);
    }
    if (!report.passed()) {
      row.status = reports::Status::mismatch;
      row.reason = report.failure();
      return;
    }
    if (c.flash_decode()) {
      // The other ways to join the same streams.
      double difference = 0;
      for (const Merge merge : {Merge::tree, Merge::lse, Merge::two_pass, Merge::sequential}) {
        if (merge == plan.merge) continue;
        DecodeOptions options = c.options;
        options.merge = merge;
        options.splits = merge == Merge::sequential ? 0 : plan.splits;
        const DecodePlan other = plan_decode(device_, problem, view, options);
        const std::vector<float> got = floats_of(run_once([&] { decode(other); }), c.dtype);
        for (std::size_t i = 0; i < got.size(); ++i) {
          difference = std::max(difference, static_cast<double>(std::abs(got[i] - values[i])));
        }
      }
      figures.set("merge_difference", difference);
    }
  }

  const harness::Samples samples = session.sampler().measure({work, {}, 4});
  add_statistics(figures, "decode", samples);
  const double median_ms = samples.statistics().median_ms;
  const PlannedView planned(c);
  harness::Work amount{decode_flops(problem, planned.view), decode_bytes(problem, planned.view)};
  const attention::Implementation* const arithmetic = c.flash_prefill() ? prefill.implementation : implementation_;
  amount.path = c.flash_decode() ? ComputePath::fp32 : arithmetic->compute_path(p, Pass::forward);
  if (c.flash_decode() && device_.is_cuda() && is_16bit(c.dtype)) amount.path = ComputePath::half;
  amount.memory = harness::MemoryRate::read;
  if (auto warning = add_rates(figures, "decode", median_ms, amount, session.ceilings())) {
    session.warn(*warning + " (" + c.impl + ", " + describe(p) + ")");
  }
  figures.set("tokens_per_s", static_cast<double>(c.batch * c.tokens) / (median_ms * 1e-3));
  figures.set("read_share", amount.bytes / (median_ms * 1e6) / session.ceilings().read_gbps());
  const std::string key = c.problem_key();
  if (c.impl == "naive") shared_->naive_ms[key] = median_ms;
  if (const auto naive = shared_->naive_ms.find(key); naive != shared_->naive_ms.end()) {
    figures.set("speedup", naive->second / median_ms);
  }
}

}  // namespace warpmeter::attn_bench
