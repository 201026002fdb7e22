#include "tools/attn_bench/prefill_case.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "kernels/attention/detail/row_ops.hpp"
#include "kernels/attention/registry.hpp"
#include "kernels/runtime/random.hpp"

namespace warpmeter::attn_bench {

namespace {

using attention::as_const;
using attention::AttentionProblem;
using attention::DecodeProblem;
using attention::KvCache;
using attention::KvView;
using attention::operand_bhsd;
using attention::Pass;
using attention::PrefillOptions;
using attention::StreamingAttention;
using attention::StreamingWeights;

constexpr double kMiB = 1024.0 * 1024.0;
constexpr unsigned char kPoison = 0xFF;  // NaN in every floating type

// Random streams of the inputs and weights: the same for every implementation.
enum InputStream : std::uint64_t {
  kInput,
  kQueries,
  kKeys,
  kValues,
  kQueryWeight,
  kKeyWeight,
  kValueWeight,
  kOutWeight
};

std::size_t block_bytes(std::int64_t elements, DType dtype) {
  constexpr std::size_t kRounding = 512;  // the allocator's
  const std::size_t bytes = static_cast<std::size_t>(elements) * size_of(dtype);
  return (bytes + kRounding - 1) / kRounding * kRounding;
}

std::vector<float> host_values(const Tensor& tensor, StreamView stream) {
  std::vector<std::byte> bytes(tensor.bytes());
  copy_bytes(bytes.data(), Device::cpu(), tensor.data(), tensor.device(), bytes.size(), stream);
  synchronize(stream);
  std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
  attention::detail::row_ops(storage_of(tensor.dtype())).to_float(bytes.data(), values.data(), tensor.elements());
  return values;
}

/// A prompt worked through again and again; its outputs are there after a call.
class Work {
 public:
  virtual ~Work() = default;
  virtual void prefill(const Context& context) = 0;
  [[nodiscard]] virtual const Tensor& outputs() const = 0;
};

/// The layer with its projections.
class LayerWork final : public Work {
 public:
  LayerWork(const Context& context, const PrefillConfiguration& c, std::int64_t chunk,
            const attention::Implementation* implementation, Tensor x, const StreamingWeights& weights)
      : x_(std::move(x)), layer_(context, config_of(c, chunk, implementation), weights) {}
  void prefill(const Context& context) override {
    y_.reset();
    layer_.reset(context);
    y_ = layer_.prefill(context, x_);
  }
  [[nodiscard]] const Tensor& outputs() const override { return y_; }

 private:
  static attention::StreamingConfig config_of(const PrefillConfiguration& c, std::int64_t chunk,
                                              const attention::Implementation* implementation) {
    attention::StreamingConfig config;
    config.sequences = c.batch;
    config.d_model = c.d_model();
    config.num_heads = c.num_heads;
    config.num_kv_heads = c.num_kv_heads;
    config.max_tokens = c.seq_len;
    config.dtype = config.cache_dtype = storage_of(c.dtype);
    config.page_size = c.page_size;
    config.chunk = chunk;
    config.prefill.implementation = implementation;
    return config;
  }

  Tensor x_, y_;
  StreamingAttention layer_;
};

/// Attention alone: the chunks' keys and values go into the cache, their queries over it.
class AttentionWork final : public Work {
 public:
  AttentionWork(const Context& context, const PrefillConfiguration& c, std::int64_t chunk,
                const attention::Implementation* implementation, Tensor q, Tensor k, Tensor v)
      : c_(c),
        chunk_(chunk),
        implementation_(implementation),
        q_(std::move(q)),
        k_(std::move(k)),
        v_(std::move(v)),
        o_(context, {c.batch, c.num_heads, c.seq_len, c.head_dim}, c.dtype),
        lse_(context, {c.batch, c.num_heads, std::min(chunk, c.seq_len)}, DType::fp32),
        cache_(context, c.cache()) {
    o_.fill_bytes(kPoison, context.stream);
  }
  void prefill(const Context& context) override {
    cache_.reset(context);
    for (std::int64_t first = 0; first < c_.seq_len; first += chunk_) {
      const std::int64_t tokens = std::min(chunk_, c_.seq_len - first);
      cache_.append(context, storage_of(c_.dtype), rows(k_, first), rows(v_, first), tokens);
      const DecodeProblem problem{c_.num_heads, tokens, c_.dtype};
      const KvView view = cache_.view();
      const auto plan = plan_prefill(context.device(), problem, view, {implementation_, 0});
      attention::Operand out = operand_bhsd(o_);
      out.data = static_cast<char*>(out.data) + offset(first);
      prefill_attention(context, problem, view, plan, rows(q_, first), out, lse_.data_as<float>());
    }
  }
  [[nodiscard]] const Tensor& outputs() const override { return o_; }

 private:
  [[nodiscard]] std::int64_t offset(std::int64_t row) const {
    return row * c_.head_dim * static_cast<std::int64_t>(size_of(c_.dtype));
  }
  [[nodiscard]] attention::ConstOperand rows(const Tensor& tensor, std::int64_t first) const {
    attention::ConstOperand operand = as_const(operand_bhsd(tensor));
    operand.data = static_cast<const char*>(operand.data) + offset(first);
    return operand;
  }

  PrefillConfiguration c_;
  std::int64_t chunk_;
  const attention::Implementation* implementation_;
  Tensor q_, k_, v_, o_, lse_;
  KvCache cache_;
};

}  // namespace

std::vector<std::string> prefill_row_keys() {
  return {"mode",    "impl",     "dtype",   "batch", "num_heads",   "num_kv_heads",
          "d_model", "head_dim", "seq_len", "chunk", "projections", "page_size"};
}

reports::TableLayout prefill_layout() {
  reports::TableLayout layout;
  layout.group_by = {"impl", "dtype"};
  layout.columns = {"seq_len",
                    "chunk",
                    "oneshot_ms",
                    "chunked_ms",
                    "speedup",
                    "overhead_ratio",
                    "oneshot_tokens_per_s",
                    "chunked_tokens_per_s",
                    "oneshot_tflops",
                    "chunked_tflops",
                    "oneshot_peak_mem_mib",
                    "chunked_peak_mem_mib",
                    "memory_saved_share",
                    "max_diff",
                    "mean_diff",
                    "equal",
                    "status"};
  layout.wide_columns = {"batch",       "num_heads", "num_kv_heads", "d_model", "head_dim",
                         "projections", "page_size", "kernel",       "oneshot"};
  for (const std::string phase : {"oneshot", "chunked"}) {
    for (const char* figure : {"_mean_ms", "_min_ms", "_p95_ms", "_p99_ms", "_stdev_ms", "_noise", "_n", "_stop",
                               "_gbps", "_bound", "_bound_share"}) {
      layout.wide_columns.push_back(phase + figure);
    }
  }
  return layout;
}

PrefillCase::PrefillCase(PrefillConfiguration configuration, Device device)
    : configuration_(std::move(configuration)),
      device_(device),
      implementation_(attention::find_implementation(device.kind, configuration_.impl)) {}

reports::Object PrefillCase::configuration() const {
  const PrefillConfiguration& c = configuration_;
  reports::Object object = c.fields("prefill");
  object.set("seq_len", c.seq_len);
  object.set("chunk", c.chunk);
  object.set("projections", c.projections);
  object.set("page_size", c.page_size);
  return object;
}

std::vector<std::pair<std::string, std::string>> PrefillCase::option_values() const {
  const PrefillConfiguration& c = configuration_;
  auto values = c.option_values("prefill");
  values.insert(values.end(), {{"--seq-len", std::to_string(c.seq_len)},
                               {"--chunk", std::to_string(c.chunk)},
                               {"--projections", c.projections ? "true" : "false"},
                               {"--page-size", std::to_string(c.page_size)}});
  return values;
}

std::optional<std::string> PrefillCase::unsupported() const {
  const PrefillConfiguration& c = configuration_;
  if (implementation_ == nullptr) {
    return c.impl + " is not in this build for " + (device_.is_cpu() ? "the CPU" : "CUDA");
  }
  if (c.dtype == DType::tf32) return "a KV cache holds fp32, bf16 or fp16";
  if (auto reason = attention::unsupported(device_.kind, c.cache())) return reason;
  return implementation_->unsupported(c.problem(), Pass::forward);
}

std::size_t PrefillCase::peak_bytes(std::int64_t chunk) const {
  const PrefillConfiguration& c = configuration_;
  const std::int64_t tokens = std::min(chunk, c.seq_len);
  const std::vector<std::int64_t> lengths(static_cast<std::size_t>(c.batch), c.seq_len);
  KvView view;
  view.dtype = storage_of(c.dtype);
  view.batch = c.batch;
  view.num_kv_heads = c.num_kv_heads;
  view.head_dim = c.head_dim;
  view.page_size = c.page_size == 0 ? c.seq_len : c.page_size;
  view.host_lengths = lengths;
  view.paged = c.page_size != 0;
  const std::size_t workspace =
      plan_prefill(device_, {c.num_heads, tokens, c.dtype}, view, {implementation_, 0}).workspace_bytes;
  const std::int64_t kv_width = c.num_kv_heads * c.head_dim;
  const std::size_t all_rows = block_bytes(c.batch * c.seq_len * c.d_model(), c.dtype);
  const std::size_t lse = block_bytes(c.batch * c.num_heads * tokens, DType::fp32);
  std::size_t total = KvCache::bytes(c.cache()) + lse + workspace + 2 * all_rows;
  if (c.projections) {
    total += 2 * block_bytes(c.d_model() * c.d_model(), c.dtype) + 2 * block_bytes(c.d_model() * kv_width, c.dtype) +
             2 * block_bytes(c.batch * tokens * c.d_model(), c.dtype);
    if (device_.is_cuda()) total += std::size_t{32} << 20;  // of the matrix products
  } else {
    total += 2 * block_bytes(c.batch * c.seq_len * kv_width, c.dtype);
  }
  return total;
}

double PrefillCase::flops() const {
  const PrefillConfiguration& c = configuration_;
  const auto rows = static_cast<double>(c.batch * c.seq_len), width = static_cast<double>(c.d_model()),
             kv_width = static_cast<double>(c.num_kv_heads * c.head_dim);
  return c.problem().forward_flops() + (c.projections ? 2 * rows * width * (2 * width + 2 * kv_width) : 0);
}

double PrefillCase::bytes() const {
  const PrefillConfiguration& c = configuration_;
  if (!c.projections) return c.problem().forward_bytes();
  const auto rows = static_cast<double>(c.batch * c.seq_len), width = static_cast<double>(c.d_model()),
             kv_width = static_cast<double>(c.num_kv_heads * c.head_dim);
  // Input, output, weights, and the cache written.
  return static_cast<double>(size_of(c.dtype)) *
         (2 * rows * width + width * (2 * width + 2 * kv_width) + 2 * rows * kv_width);
}

harness::Prediction PrefillCase::predict() const {
  harness::Prediction prediction;
  prediction.peak_bytes = prediction.first_phase_bytes = peak_bytes(configuration_.chunk);
  prediction.details.set("prefill_flops", flops());
  prediction.details.set("chunked_predicted_peak_mem_mib", static_cast<double>(prediction.peak_bytes) / kMiB);
  prediction.details.set("oneshot_predicted_peak_mem_mib",
                         static_cast<double>(peak_bytes(configuration_.seq_len)) / kMiB);
  return prediction;
}

void PrefillCase::run(harness::Session& session, reports::Row& row) {
  const PrefillConfiguration& c = configuration_;
  const Context context = session.context();
  const harness::Settings& settings = session.settings();
  CachingAllocator& allocator = session.allocator();
  reports::Object& figures = row.figures;

  const std::int64_t kv_width = c.num_kv_heads * c.head_dim;
  StreamingWeights weights;
  Tensor x, q, k, v;
  const auto normal = [&](std::initializer_list<std::int64_t> shape, InputStream id, float deviation) {
    Tensor tensor(context, shape, c.dtype);
    fill_normal(tensor, settings.seed, id, context.stream, deviation);
    return tensor;
  };
  if (c.projections) {
    const std::int64_t width = c.d_model();
    const auto deviation = static_cast<float>(1 / std::sqrt(static_cast<double>(width)));
    weights.q = normal({width, width}, kQueryWeight, deviation);
    weights.k = normal({kv_width, width}, kKeyWeight, deviation);
    weights.v = normal({kv_width, width}, kValueWeight, deviation);
    weights.out = normal({width, width}, kOutWeight, deviation);
    x = normal({c.batch, c.seq_len, width}, kInput, 1);
  } else {
    q = normal({c.batch, c.num_heads, c.seq_len, c.head_dim}, kQueries, 1);
    k = normal({c.batch, c.num_kv_heads, c.seq_len, c.head_dim}, kKeys, 1);
    v = normal({c.batch, c.num_kv_heads, c.seq_len, c.head_dim}, kValues, 1);
  }
  figures.set("kernel", implementation_->kernel(c.problem(), Pass::forward));

  // Measures one way; returns its outputs.
  const auto measure = [&](const std::string& phase, std::int64_t chunk) {
    allocator.reset_peak();
    std::unique_ptr<Work> work;
    if (c.projections) {
      work = std::make_unique<LayerWork>(context, c, chunk, implementation_, x, weights);
    } else {
      work = std::make_unique<AttentionWork>(context, c, chunk, implementation_, q, k, v);
    }
    work->prefill(context);
    synchronize(context.stream);
    const std::vector<float> outputs = host_values(work->outputs(), context.stream);
    // A blocking kernel would wait for copies of lengths that wait for it.
    constexpr std::int64_t kNoBlocker = 1000;
    const harness::Samples samples = session.sampler().measure({[&] { work->prefill(context); }, {}, kNoBlocker});
    add_statistics(figures, phase, samples);
    const double median_ms = samples.statistics().median_ms;
    harness::Work amount{flops(), bytes(), implementation_->compute_path(c.problem(), Pass::forward)};
    if (auto warning = add_rates(figures, phase, median_ms, amount, session.ceilings())) {
      session.warn(*warning + " (" + c.impl + ", " + describe(c.problem()) + ")");
    }
    figures.set(phase + "_tokens_per_s", static_cast<double>(c.batch * c.seq_len) / (median_ms * 1e-3));
    figures.set(phase + "_peak_mem_mib", static_cast<double>(allocator.stats().peak.allocated) / kMiB);
    return std::pair{outputs, median_ms};
  };

  const auto [chunked, chunked_ms] = measure("chunked", std::min(c.chunk, c.seq_len));
  session.checkpoint(row);

  std::vector<float> oneshot;
  double oneshot_ms = 0;
  allocator.empty_cache();
  if (peak_bytes(c.seq_len) > allocator.available_bytes() + allocator.stats().current.allocated) {
    figures.set("oneshot", "oom (predicted)");
  } else {
    try {
      std::tie(oneshot, oneshot_ms) = measure("oneshot", c.seq_len);
      figures.set("oneshot", "ok");
    } catch (const OutOfMemory&) {
      figures.set("oneshot", "oom");
    }
  }
  if (oneshot.empty()) return;

  double largest = 0, most = 0, total = 0;
  bool finite = true;
  for (std::size_t i = 0; i < oneshot.size(); ++i) {
    const double difference = std::abs(static_cast<double>(oneshot[i]) - chunked[i]);
    finite = finite && std::isfinite(difference);
    most = std::max(most, difference);
    total += difference;
    largest = std::max(largest, std::abs(static_cast<double>(oneshot[i])));
  }
  // fp32 sums in another order; in 16 bits P, the attention's result and the output are rounded on either side.
  const double allowed = c.dtype == DType::fp32 ? 1e-5 * std::max(1.0, largest) : 4 * unit_roundoff(c.dtype) * largest;
  const bool equal = finite && most <= allowed;
  figures.set("max_diff", most);
  figures.set("mean_diff", total / static_cast<double>(oneshot.size()));
  figures.set("equal", equal);
  if (!equal) {
    row.status = reports::Status::mismatch;
    row.reason =
        "chunked and one-shot outputs differ by " + std::to_string(most) + ", allowed " + std::to_string(allowed);
    return;
  }
  figures.set("speedup", oneshot_ms / chunked_ms);
  figures.set("overhead_ratio", chunked_ms / oneshot_ms);
  const double before = *figures.find("oneshot_peak_mem_mib")->as_double();
  const double after = *figures.find("chunked_peak_mem_mib")->as_double();
  figures.set("memory_saved_share", 1 - after / before);
}

}  // namespace warpmeter::attn_bench
