#include "tools/e2e_bench/data_parallel_case.hpp"

#include <algorithm>

#include <fmt/core.h>

#include "kernels/data_parallel/toy_mlp.hpp"
#include "tools/e2e_bench/data_parallel_training.hpp"
#include "tools/harness/grammar.hpp"

namespace warpmeter::e2e_bench {

namespace {

using Kind = DataParallelConfiguration::Kind;

constexpr double kMiB = 1024.0 * 1024.0;

double mib(std::size_t bytes) {
  return static_cast<double>(bytes) / kMiB;
}

/// What rows that differ in the bucket's size alone have in common.
std::string family_of(DataParallelConfiguration c) {
  c.kind = Kind::timed;
  c.bucket_bytes = 0;
  std::string text;
  const reports::Object object = describe(c);
  for (const auto& [name, value] : object.fields()) {
    text += name + "=";
    if (const auto* word = value.as_string()) text += *word;
    if (const auto number = value.as_number()) text += fmt::format("{}", *number);
    if (const auto* flag = value.as_bool()) text += *flag ? "true" : "false";
    text += ";";
  }
  return text;
}

}  // namespace

std::optional<std::string> DataParallelCase::unsupported() const {
  return e2e_bench::unsupported(configuration_, device_, rows_->groups.shape(configuration_.world_size));
}

harness::Prediction DataParallelCase::predict() const {
  if (prediction_) return *prediction_;
  const DataParallelConfiguration& c = configuration_;
  const int ranks = c.world_size;
  // Unsharded ranks are alike.
  std::vector<RankMemory> memory;
  for (int r = 0; r < (c.shards ? ranks : 1); ++r) memory.push_back(predict_rank_memory(c, device_, r));
  const auto largest = [&](std::size_t RankMemory::*field) {
    std::size_t most = 0;
    for (const RankMemory& m : memory) most = std::max(most, m.*field);
    return most;
  };
  // Ranks of one host share its memory; each GPU has its own.
  const std::size_t peak = largest(&RankMemory::peak);
  const auto sharers =
      static_cast<std::size_t>(device_.is_cpu() ? rows_->groups.shape(c.world_size).most_on_a_host : 1);
  harness::Prediction prediction;
  prediction.peak_bytes = prediction.first_phase_bytes = peak * sharers;
  reports::Object& details = prediction.details;
  details.set("parameters", c.toy() ? data_parallel::ToyMlp::kParameters : c.model.model.parameters());
  details.set("step_flops", step_flops(c));
  details.set("predicted_init_mem_mib", mib(largest(&RankMemory::initialized)));
  details.set("predicted_before_update_mem_mib", mib(largest(&RankMemory::before_update)));
  details.set("predicted_after_update_mem_mib", mib(largest(&RankMemory::after_update)));
  details.set("predicted_rank_peak_mem_mib", mib(peak));
  prediction_ = prediction;
  return prediction;
}

void DataParallelCase::run(harness::Session& session, reports::Row& row) {
  const DataParallelConfiguration& c = configuration_;
  const harness::Prediction prediction = predict();
  for (const auto& [name, value] : prediction.details.fields()) {
    if (name != "step_flops") row.figures.set(name, value);
  }
  harness::launch::Group& group =
      rows_->groups.get(*c.backend, c.world_size, [&](const std::string& text) { session.warn(text); });
  const harness::launch::Outcome outcome = group.measure(index_, c.describe());
  row.status = outcome.status;
  row.reason = outcome.reason;
  for (const auto& [name, value] : outcome.figures.fields()) row.figures.set(name, value);
  if (!group.library_version().empty()) row.figures.set("library", group.library_version());
  if (outcome.status != reports::Status::ok) return;
  if (c.kind == Kind::fitted) add_best_bucket(row.figures);
  const reports::Value* step_ms = row.figures.find("step_ms");
  if (c.kind == Kind::timed && step_ms != nullptr && step_ms->as_number()) {
    rows_->steps_ms[family_of(c)][c.bucket_bytes] = *step_ms->as_number();
  }
  if (const reports::Value* differences = row.figures.find("max_diffs"); differences != nullptr) {
    // As the notes print it.
    int index = 0;
    for (const reports::Value& value : *differences->as_array()) {
      fmt::print(stderr, "param {}: max_diff = {:.8e}\n", index++, value.as_number().value_or(0));
    }
  }
}

void DataParallelCase::add_best_bucket(reports::Object& figures) {
  figures.set("measured_best_bucket", nullptr);
  const auto& steps = rows_->steps_ms[family_of(configuration_)];
  if (steps.size() != configuration_.bucket_list.size()) return;  // some were not timed in this run
  const auto best =
      std::min_element(steps.begin(), steps.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  figures.set("measured_best_bucket", harness::format_exact_size(best->first));
  figures.set("best_step_s", best->second / 1e3);
}

reports::TableLayout data_parallel_layout(bool verified) {
  reports::TableLayout layout;
  layout.group_by = {"size", "precision", "context", "backend"};
  layout.headings = {{"step_s", "s/step"}, {"peak_mem_mib", "peak MiB"}};
  layout.columns = {"strategy", "world_size", "bucket"};
  if (verified) {
    layout.columns.insert(layout.columns.end(), {"optimizer", "verify_steps", "max_diff", "bound_used", "status"});
  } else {
    layout.columns.insert(layout.columns.end(),
                          {"step_s", "comm_ms", "exposed_ms", "peak_mem_mib", "call_overhead_us", "bandwidth_gbps",
                           "predicted_best_bucket_mib", "measured_best_bucket", "fit_formula", "status"});
  }
  layout.wide_columns = {"batch",
                         "parameters",
                         "hidden_share",
                         "update_exposed_ms",
                         "rank_skew_ms",
                         "comm_busy_ms",
                         "local_step_ms",
                         "local_share",
                         "comm_calls",
                         "comm_bytes",
                         "update_calls",
                         "update_bytes",
                         "step_tflops",
                         "tokens_per_s",
                         "samples_per_s",
                         "step_mean_ms",
                         "step_min_ms",
                         "step_p95_ms",
                         "step_stdev_ms",
                         "step_noise",
                         "step_n",
                         "step_stop",
                         "init_mem_mib",
                         "before_update_mem_mib",
                         "after_update_mem_mib",
                         "predicted_init_mem_mib",
                         "predicted_before_update_mem_mib",
                         "predicted_after_update_mem_mib",
                         "predicted_rank_peak_mem_mib",
                         "weights_fingerprint",
                         "loss",
                         "library"};
  return layout;
}

}  // namespace warpmeter::e2e_bench
