#include "tools/e2e_bench/operations.hpp"

#include <algorithm>

#include "kernels/runtime/check.hpp"
#include "tools/e2e_bench/model_case.hpp"
#include "tools/e2e_bench/toy_amp.hpp"
#include "tools/harness/sampler.hpp"

namespace warpmeter::e2e_bench {

namespace {

using transformer::Model;

constexpr std::int64_t kDefaultRuns = 10;
constexpr std::int64_t kMostWarmUp = 3;

OperationSum sum_of(const transformer::Operation& operation) {
  OperationSum sum;
  sum.name = operation.name;
  sum.kind = name(operation.kind);
  sum.path = operation.path;
  sum.result = operation.result;
  return sum;
}

void run_phase(Model& model, const std::string& phase) {
  if (phase == "forward") {
    model.forward();
  } else if (phase == "train_step") {
    model.train_step();
  } else {
    model.forward_backward();
  }
}

/// train_step has everything that forward_backward has.
std::vector<std::string> phases_of(const Configuration& c) {
  std::vector<std::string> phases;
  if (c.modes.forward) phases.emplace_back("forward");
  if (c.modes.training()) phases.emplace_back(c.modes.train_step ? "train_step" : "forward_backward");
  return phases;
}

std::vector<OperationSum> all_parts(const Configuration& c, Device device) {
  std::vector<OperationSum> parts = attention_parts(c, device, false);
  const std::vector<OperationSum> more = attention_parts(c, device, true);
  parts.insert(parts.end(), more.begin(), more.end());
  return parts;
}

bool wanted(const std::vector<std::string>& only, const std::string& name) {
  return only.empty() || std::find(only.begin(), only.end(), name) != only.end();
}

/// The operations of a configuration with their times, measured once.
class Breakdown {
 public:
  explicit Breakdown(Configuration configuration) : configuration_(std::move(configuration)) {}

  [[nodiscard]] const Configuration& configuration() const { return configuration_; }

  [[nodiscard]] const std::vector<OperationSum>& measured(harness::Session& session, const std::string& phase) {
    if (phases_.empty()) measure(session);
    return phases_.at(phase);
  }

 private:
  void measure(harness::Session& session) {
    const harness::Settings& settings = session.settings();
    const Context context = session.context();
    Model model(context, configuration_.model, configuration_.options(settings.device));
    model.initialize(settings.seed);
    model_options::set_random_batch(model, configuration_, settings.seed);
    std::map<std::string, std::vector<OperationSum>> phases;
    for (const std::string& phase : phases_of(configuration_)) {
      model.drop_logits();
      if (phase != "forward") model.prepare_training();
      for (std::int64_t i = 0; i <= std::min(settings.warmup, kMostWarmUp); ++i) run_phase(model, phase);
      OperationTimer timer(context.stream, all_parts(configuration_, settings.device));
      model.set_sink(&timer);
      for (std::int64_t i = 0; i < settings.steps.value_or(kDefaultRuns); ++i) {
        harness::throw_if_interrupted();
        timer.begin_run();
        run_phase(model, phase);
        timer.end_run();
      }
      model.set_sink(nullptr);
      phases[phase] = timer.sums();
      const std::vector<OperationSum> more = totals(phases[phase]);
      phases[phase].insert(phases[phase].end(), more.begin(), more.end());
    }
    phases_ = std::move(phases);
  }

  Configuration configuration_;
  std::map<std::string, std::vector<OperationSum>> phases_;
};

class OperationCase : public harness::Case {
 public:
  OperationCase(std::shared_ptr<Breakdown> breakdown, Device device, std::string phase, OperationSum planned)
      : breakdown_(std::move(breakdown)), device_(device), phase_(std::move(phase)), planned_(std::move(planned)) {}

  [[nodiscard]] reports::Object configuration() const override {
    Configuration c = breakdown_->configuration();
    reports::Object object = describe(c);
    object.set("mode", phase_);
    object.set("phase", phase_);
    object.set("operation", planned_.name);
    return object;
  }
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> option_values() const override {
    auto values = e2e_bench::option_values(breakdown_->configuration(), device_);
    for (auto& [option, text] : values) {
      if (option == "--mode") text = phase_;
    }
    values.emplace_back("--operation", planned_.name);
    return values;
  }
  [[nodiscard]] std::optional<std::string> unsupported() const override {
    return e2e_bench::unsupported(breakdown_->configuration(), device_);
  }
  [[nodiscard]] harness::Prediction predict() const override {
    harness::Prediction prediction = e2e_bench::predict(breakdown_->configuration(), device_);
    prediction.details = reports::Object();
    prediction.details.set("kind", planned_.kind);
    prediction.details.set("calls", planned_.calls);
    prediction.details.set("op_flops", planned_.flops);
    prediction.details.set("op_bytes", planned_.bytes);
    return prediction;
  }
  void run(harness::Session& session, reports::Row& row) override {
    const std::vector<OperationSum>& all = breakdown_->measured(session, phase_);
    const auto found =
        std::find_if(all.begin(), all.end(), [&](const OperationSum& sum) { return sum.name == planned_.name; });
    WM_CHECK(found != all.end(), "an operation that was planned did not run: " + planned_.name);
    reports::Object& figures = row.figures;
    figures.set("kind", found->kind);
    figures.set("calls", found->calls);
    figures.set("op_ms", found->ms);
    figures.set("op_us_per_call", found->ms * 1e3 / static_cast<double>(found->calls));
    figures.set("time_share", found->ms / all.back().ms);
    figures.set("flops_share", all.back().flops > 0 ? found->flops / all.back().flops : 0);
    if (found->kind == "all") {  // of several paths: what bounds it has no one answer
      figures.set("op_flops", found->flops);
      figures.set("op_bytes", found->bytes);
      return;
    }
    const auto warning =
        add_rates(figures, "op", found->ms, {found->flops, found->bytes, found->path}, session.ceilings());
    // An operation finds in the cache what the one before left there: faster than memory is no cause for doubt.
    const reports::Value* bound = figures.find("op_bound");
    if (warning && bound != nullptr && bound->as_string() != nullptr && *bound->as_string() == "compute") {
      session.warn(*warning + " (" + planned_.name + ")");
    }
  }

 private:
  std::shared_ptr<Breakdown> breakdown_;
  Device device_;
  std::string phase_;
  OperationSum planned_;
};

class TypeCase : public harness::Case {
 public:
  TypeCase(Configuration configuration, Device device, std::string phase, std::string operation, DType type)
      : configuration_(std::move(configuration)),
        device_(device),
        phase_(std::move(phase)),
        operation_(std::move(operation)),
        type_(type) {}

  [[nodiscard]] reports::Object configuration() const override {
    reports::Object object = describe(configuration_);
    object.set("phase", phase_);
    object.set("operation", operation_);
    return object;
  }
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> option_values() const override {
    auto values = e2e_bench::option_values(configuration_, device_);
    values.emplace_back("--operation", operation_);
    return values;
  }
  [[nodiscard]] std::optional<std::string> unsupported() const override {
    return e2e_bench::unsupported(configuration_, device_);
  }
  [[nodiscard]] harness::Prediction predict() const override { return {}; }
  void run(harness::Session&, reports::Row& row) override { row.figures.set("dtype", name(type_)); }

 private:
  Configuration configuration_;
  Device device_;
  std::string phase_, operation_;
  DType type_;
};

}  // namespace

std::vector<OperationSum> attention_parts(const Configuration& c, Device device, bool backward) {
  if (c.attention != "naive" && c.attention != "fused") return {};
  const attention::AttentionProblem problem = c.problem();
  const double product = problem.forward_flops() / 2;
  const double pairs = product / (2 * static_cast<double>(problem.head_dim));
  const auto element = static_cast<double>(size_of(problem.dtype));
  const double scores = pairs * element, operand = static_cast<double>(problem.query_elements()) * element;
  const ComputePath path =
      c.implementation(device)->compute_path(problem, backward ? attention::Pass::backward : attention::Pass::forward);
  std::vector<OperationSum> parts;
  const auto add = [&](const char* name, const char* kind, double flops, double bytes) {
    OperationSum part;
    part.name = name;
    part.kind = std::string("attention: ") + kind;
    part.calls = 1;
    part.flops = flops;
    part.bytes = bytes;
    part.path = path;
    part.result = storage_of(problem.dtype);
    parts.push_back(part);
  };
  const auto multiply = [&](const char* name) { add(name, "matmul", product, scores + 2 * operand); };
  const bool naive = c.attention == "naive";
  if (!backward) {
    multiply("ATTN_QK_MATMUL");
    if (naive) add("ATTN_SCALE", "other", pairs, 2 * scores);
    if (naive) add("ATTN_MASK", "other", 0, 2 * scores);
    add("ATTN_SOFTMAX", "softmax", (naive ? 5 : 6) * pairs, 2 * scores);
    multiply("ATTN_AV_MATMUL");
    return parts;
  }
  multiply("ATTN_BWD_DV_MATMUL");
  multiply("ATTN_BWD_DP_MATMUL");
  add("ATTN_BWD_SOFTMAX", "softmax", (naive ? 4 : 5) * pairs, 3 * scores);
  if (naive) add("ATTN_BWD_MASK", "other", 0, 2 * scores);
  if (naive) add("ATTN_BWD_SCALE", "other", pairs, 2 * scores);
  multiply("ATTN_BWD_DQ_MATMUL");
  multiply("ATTN_BWD_DK_MATMUL");
  return parts;
}

bool is_part(const OperationSum& operation) {
  return operation.kind.starts_with("attention: ");
}

void OperationTimer::start(const OperationSum& one_call) {
  const auto found = index_.find(one_call.name);
  std::size_t entry = entries_.size();
  if (found == index_.end()) {
    index_.emplace(one_call.name, entry);
    entries_.push_back({one_call, {}});
    entries_.back().sum.calls = 0;
    entries_.back().sum.flops = entries_.back().sum.bytes = 0;
  } else {
    entry = found->second;
  }
  if (next_ == events_.size()) {
    events_.emplace_back(Event(stream_.device), Event(stream_.device));
    entry_of_.push_back(entry);
    OperationSum& sum = entries_[entry].sum;  // the first run counts
    ++sum.calls;
    sum.flops += one_call.flops;
    sum.bytes += one_call.bytes;
  }
  WM_CHECK(entry_of_[next_] == entry, "every run has the same operations");
  open_.push_back(next_++);
  events_[open_.back()].first.record(stream_);
}

void OperationTimer::stop() {
  events_[open_.back()].second.record(stream_);
  open_.pop_back();
}

void OperationTimer::begin(const transformer::Operation& operation) {
  OperationSum one_call = sum_of(operation);
  one_call.flops = operation.flops;
  one_call.bytes = operation.bytes;
  start(one_call);
}

void OperationTimer::end(const transformer::Operation&) {
  stop();
}

void OperationTimer::opened(std::string_view range) {
  for (const OperationSum& part : parts_) {
    if (part.name == range) start(part);
  }
}

void OperationTimer::closed(std::string_view range) {
  for (const OperationSum& part : parts_) {
    if (part.name == range) stop();
  }
}

void OperationTimer::begin_run() {
  next_ = 0;
  open_.clear();
  if (!parts_.empty()) observe_ranges(this);
}

void OperationTimer::end_run() {
  observe_ranges(nullptr);
  synchronize(stream_);
  std::vector<double> ms(entries_.size(), 0.0);
  for (std::size_t i = 0; i < events_.size(); ++i) ms[entry_of_[i]] += elapsed_ms(events_[i].first, events_[i].second);
  for (std::size_t i = 0; i < entries_.size(); ++i) entries_[i].samples_ms.push_back(ms[i]);
}

std::vector<OperationSum> OperationTimer::sums() const {
  std::vector<OperationSum> sums;
  for (const Entry& entry : entries_) {
    sums.push_back(entry.sum);
    sums.back().ms = harness::summarize(entry.samples_ms).median_ms;
  }
  return sums;
}

std::vector<OperationSum> planned_operations(const Configuration& c, Device device, const std::string& phase) {
  // The order and the sums as the timer has them; events of the CPU cost nothing.
  OperationTimer timer({Device::cpu(), nullptr});
  Model model({{device, nullptr}, nullptr}, c.model, c.options(device), true);
  if (phase != "forward") model.prepare_training();
  model.set_sink(&timer);
  timer.begin_run();
  run_phase(model, phase);
  timer.end_run();
  std::vector<OperationSum> sums;
  for (OperationSum& sum : timer.sums()) {
    sum.ms = 0;
    sums.push_back(sum);
    if (sum.kind != "attention") continue;
    // A planning run has no ranges: what the implementation will open.
    for (OperationSum part : attention_parts(c, device, sum.name == "ATTENTION_BWD")) {
      part.calls *= sum.calls;
      part.flops *= static_cast<double>(sum.calls);
      part.bytes *= static_cast<double>(sum.calls);
      sums.push_back(part);
    }
  }
  return sums;
}

std::vector<OperationSum> totals(const std::vector<OperationSum>& operations) {
  std::vector<OperationSum> result;
  OperationSum all;
  all.name = "all operations";
  all.kind = "all";
  const auto add = [](OperationSum& to, const OperationSum& from) {
    to.calls += from.calls;
    to.flops += from.flops;
    to.bytes += from.bytes;
    to.ms += from.ms;
  };
  for (const OperationSum& operation : operations) {
    const std::string name = "all " + operation.kind;
    auto found = std::find_if(result.begin(), result.end(), [&](const OperationSum& sum) { return sum.name == name; });
    if (found == result.end()) {
      result.push_back({});
      found = result.end() - 1;
      found->name = name;
      found->kind = operation.kind;
      found->path = operation.path;
    }
    add(*found, operation);
    if (!is_part(operation)) add(all, operation);
  }
  result.push_back(all);
  return result;
}

std::unique_ptr<harness::Case> unsupported_operation(const Configuration& c, Device device) {
  return std::make_unique<TypeCase>(c, device, c.mode_text(), "all operations", c.precision.activation);
}

std::vector<std::unique_ptr<harness::Case>> breakdown_cases(const Configuration& c, Device device,
                                                            const std::vector<std::string>& only) {
  std::vector<std::unique_ptr<harness::Case>> cases;
  const auto breakdown = std::make_shared<Breakdown>(c);
  for (const std::string& phase : phases_of(c)) {
    std::vector<OperationSum> operations = planned_operations(c, device, phase);
    const std::vector<OperationSum> more = totals(operations);
    operations.insert(operations.end(), more.begin(), more.end());
    for (const OperationSum& operation : operations) {
      if (!wanted(only, operation.name)) continue;
      cases.push_back(std::make_unique<OperationCase>(breakdown, device, phase, operation));
    }
  }
  return cases;
}

std::vector<std::unique_ptr<harness::Case>> type_cases(const Configuration& c, Device device,
                                                       const std::vector<std::string>& only) {
  std::vector<std::unique_ptr<harness::Case>> cases;
  const auto add = [&](const char* phase, const std::string& operation, DType type) {
    if (!wanted(only, operation)) return;
    cases.push_back(std::make_unique<TypeCase>(c, device, phase, operation, type));
  };
  const transformer::PrecisionPolicy& p = c.precision;
  add("stored", "weights that products read", p.activation);
  add("stored", "master weights", p.master == layers::MasterKind::none ? p.activation : DType::fp32);
  add("stored", "gradients of weights", p.gradient);
  add("stored", "moments of the optimizer", p.moment);
  add("stored", "sums of products", DType::fp32);
  add("stored", "softmax, norms and reductions", DType::fp32);
  add("stored", "log-sum-exp of attention", DType::fp32);
  add("stored", "losses and their mean", DType::fp32);
  for (const OperationSum& operation : planned_operations(c, device, "train_step")) {
    add("train_step", operation.name, operation.result);
  }
  return cases;
}

std::vector<std::unique_ptr<harness::Case>> toy_type_cases(const Configuration& c, Device device,
                                                           const std::vector<std::string>& only) {
  std::vector<std::unique_ptr<harness::Case>> cases;
  for (const ToyValue& value : toy_amp_values(c.precision)) {
    if (!wanted(only, value.name)) continue;
    cases.push_back(std::make_unique<TypeCase>(c, device, value.phase, value.name, value.type));
  }
  return cases;
}

}  // namespace warpmeter::e2e_bench
