#include "tools/e2e_bench/model_case.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "kernels/transformer/graph.hpp"
#include "tools/e2e_bench/operations.hpp"
#include "tools/e2e_bench/peak_flops.hpp"
#include "tools/harness/grammar.hpp"

namespace warpmeter::e2e_bench {

namespace {

using transformer::MemoryByKind;
using transformer::MemoryKind;
using transformer::Model;

constexpr double kMiB = 1024.0 * 1024.0;

double mib(std::size_t bytes) {
  return static_cast<double>(bytes) / kMiB;
}

/// Counts the operations of a phase: an upper bound of its launches is a few times as many.
struct Counter : transformer::OperationSink {
  std::int64_t operations = 0;
  [[nodiscard]] bool one_by_one() const override { return false; }
  void begin(const transformer::Operation&) override { ++operations; }
  void end(const transformer::Operation&) override {}
};
constexpr std::int64_t kLaunchesAnOperation = 4;

/// What the mean loss of random weights on random tokens is about, and how far it may be from that. Logits are nearly
/// normal with variance s^2 = 2 d_model / (vocab + d_model): the loss is ln vocab + s^2 / 2, and its mean over n tokens
/// strays by s / sqrt(n); a small vocabulary takes something off the first.
struct Expectation {
  double loss, tolerance;
};
Expectation expected_loss(const Configuration& c) {
  const auto vocab = static_cast<double>(c.model.vocab), width = static_cast<double>(c.model.d_model);
  const double variance = 2 * width / (vocab + width);
  return {std::log(vocab) + variance / 2,
          0.05 + 6 * std::sqrt(variance / static_cast<double>(c.tokens())) + std::expm1(variance) / vocab};
}

bool all_finite(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); });
}

std::string oom_reason(const char* phase, const OutOfMemory& e) {
  return std::string(phase) + ": requested " + harness::format_size(e.requested()) + ", free " +
         harness::format_size(e.free()) + ", limit " + harness::format_size(e.limit());
}

void set_kinds(reports::Object& figures, const MemoryByKind& memory) {
  for (std::size_t i = 0; i < transformer::kMemoryKinds; ++i) {
    const auto kind = static_cast<MemoryKind>(i);
    figures.set("predicted_" + std::string(name(kind)) + "_mib", mib(memory[kind]));
  }
}

/// One row as it is measured.
class Measurement {
 public:
  Measurement(const Configuration& configuration, harness::Session& session, reports::Row& row)
      : c_(configuration),
        session_(session),
        row_(row),
        model_(session.context(), c_.model, c_.options(session.settings().device)) {}

  void run() {
    reports::Object& figures = row_.figures;
    figures.set("parameters", c_.model.parameters());
    model_.initialize(session_.settings().seed);
    model_options::set_random_batch(model_, c_, session_.settings().seed);
    const double forward_flops = c_.model.forward_flops(c_.batch, c_.context);
    if (c_.modes.forward) {
      phase_ = "forward";
      measure(
          "fwd", forward_flops, "fwd_peak_mem_mib", [&] { model_.forward(); }, [&] { return check_logits(); });
      if (row_.status != reports::Status::ok) return;
      model_.drop_logits();
    }
    if (!c_.modes.training()) return;
    phase_ = "training";
    model_.prepare_training();
    figures.set("loss_expected", expected_loss(c_).loss);
    if (c_.modes.forward_backward) {
      measure(
          "fwd_bwd", 3 * forward_flops, "train_peak_mem_mib", [&] { model_.forward_backward(); },
          [&] { return check_loss(); });
      if (row_.status != reports::Status::ok) return;
    }
    if (c_.modes.train_step) {
      measure(
          "train_step", 3 * forward_flops, "train_peak_mem_mib", [&] { model_.train_step(); },
          [&] { return c_.modes.forward_backward || check_loss(); });
      const layers::StepState state = model_.step_state();
      if (c_.precision.loss_scaling) {
        figures.set("skipped_steps", static_cast<std::int64_t>(state.skipped));
        figures.set("loss_scale", static_cast<double>(state.loss_scale));
      } else if (state.skipped != 0) {
        mismatch("gradients were not finite in " + std::to_string(state.skipped) + " steps");
      }
    }
  }

  /// What was being done, for an out-of-memory row.
  [[nodiscard]] const char* phase() const { return phase_; }

 private:
  void mismatch(std::string reason) {
    row_.status = reports::Status::mismatch;
    row_.reason = std::move(reason);
  }

  bool check_logits() {
    if (all_finite(model_.logits())) return true;
    mismatch("logits are not finite");
    return false;
  }

  bool check_loss() {
    const auto loss = static_cast<double>(model_.loss());
    const Expectation expected = expected_loss(c_);
    row_.figures.set("loss", loss);
    if (std::abs(loss - expected.loss) <= expected.tolerance) return true;
    mismatch("loss " + std::to_string(loss) + " on random weights and tokens, expected " +
             std::to_string(expected.loss) + " within " + std::to_string(expected.tolerance));
    return false;
  }

  template <class Work, class Check>
  void measure(const std::string& phase, double flops, const char* peak, Work&& work, Check&& check) {
    reports::Object& figures = row_.figures;
    const Context context = session_.context();
    CachingAllocator& allocator = session_.allocator();
    allocator.reset_peak();
    Counter counter;
    model_.set_sink(&counter);
    synchronize(context.stream);
    const auto begin = std::chrono::steady_clock::now();
    work();
    synchronize(context.stream);
    const double first_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
    model_.set_sink(nullptr);
    set_peak(peak, allocator.stats().peak.allocated);
    if (session_.settings().check && !check()) return;
    allocator.reset_peak();  // what the check took, such as the logits as fp32, is none of the phase's

    harness::Samples samples;
    if (c_.graph) {
      const transformer::Graph graph(context.stream, work);
      samples = session_.sampler().measure({[&] { graph.launch(context.stream); }, {}, 1});
    } else {
      samples = session_.sampler().measure({work, {}, kLaunchesAnOperation * counter.operations});
    }
    add_statistics(figures, phase, samples);
    const double median_ms = samples.statistics().median_ms;
    figures.set(phase + "_s", median_ms / 1e3);
    figures.set(phase + "_first_ms", first_ms);
    figures.set(phase + "_flops", flops);
    figures.set(phase + "_tflops", flops / median_ms / 1e9);
    if (session_.settings().wide) figures.set(phase + "_gemm_share", matmul_share(work));
    if (const auto best = peak_flops(c_, session_)) {
      figures.set(phase + "_mfu", flops / median_ms / 1e9 / best->tflops);
      figures.set("mfu_peak_tflops", best->tflops);
      figures.set("mfu_peak_source", best->source);
    }
    if (phase != "fwd_bwd") {
      figures.set(phase == "fwd" ? "fwd_tokens_per_s" : "tokens_per_s",
                  static_cast<double>(c_.tokens()) / (median_ms / 1e3));
    }
    set_peak(peak, allocator.stats().peak.allocated);
    session_.checkpoint(row_);
  }

  /// Of the time of one run, operation by operation and not recorded.
  template <class Work>
  double matmul_share(Work&& work) {
    OperationTimer timer(session_.context().stream);
    model_.set_sink(&timer);
    for (int i = 0; i < 3; ++i) {
      timer.begin_run();
      work();
      timer.end_run();
    }
    model_.set_sink(nullptr);
    double products = 0, all = 0;
    for (const OperationSum& sum : timer.sums()) {
      all += sum.ms;
      if (sum.kind == "matmul") products += sum.ms;
    }
    return all > 0 ? products / all : 0;
  }

  /// Training has two phases and one peak.
  void set_peak(const char* name, std::size_t bytes) {
    const reports::Value* before = row_.figures.find(name);
    const double earlier = before != nullptr ? before->as_number().value_or(0) : 0;
    row_.figures.set(name, std::max(earlier, mib(bytes)));
  }

  const Configuration& c_;
  harness::Session& session_;
  reports::Row& row_;
  const char* phase_ = "parameters";
  Model model_;
};

}  // namespace

harness::Prediction predict(const Configuration& c, Device device) {
  const Context context{{device, nullptr}, nullptr};
  const transformer::MemoryPrediction memory = predict_memory(context, c.model, c.options(device));
  const std::size_t training = c.modes.train_step ? memory.train_step.total() : memory.forward_backward.total();
  harness::Prediction prediction;
  prediction.first_phase_bytes = c.modes.forward ? memory.forward.total() : training;
  prediction.peak_bytes = c.modes.training() ? std::max(training, memory.forward.total()) : memory.forward.total();
  reports::Object& details = prediction.details;
  details.set("parameters", c.model.parameters());
  const double forward_flops = c.model.forward_flops(c.batch, c.context);
  if (c.modes.forward) {
    details.set("fwd_flops", forward_flops);
    details.set("fwd_predicted_peak_mem_mib", mib(memory.forward.total()));
  }
  if (c.modes.training()) {
    details.set("train_step_flops", 3 * forward_flops);
    details.set("train_predicted_peak_mem_mib", mib(training));
  }
  set_kinds(details, c.modes.train_step         ? memory.train_step
                     : c.modes.forward_backward ? memory.forward_backward
                                                : memory.forward);
  return prediction;
}

harness::Prediction ModelCase::predict() const {
  if (!prediction_) prediction_ = e2e_bench::predict(configuration_, device_);
  return *prediction_;
}

void ModelCase::run(harness::Session& session, reports::Row& row) {
  const harness::Prediction prediction = predict();
  for (const auto& [name, value] : prediction.details.fields()) {
    if (name.find("predicted") != std::string::npos) row.figures.set(name, value);
  }
  const char* phase = "parameters";
  try {
    Measurement measurement(configuration_, session, row);
    try {
      measurement.run();
    } catch (...) {
      phase = measurement.phase();
      throw;
    }
  } catch (const OutOfMemory& e) {
    row.status = reports::Status::oom;
    row.reason = oom_reason(phase, e);
  }
}

}  // namespace warpmeter::e2e_bench
