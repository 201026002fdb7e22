#include "tools/e2e_bench/model_tool.hpp"

#include <algorithm>
#include <iterator>
#include <sstream>

#include <fmt/core.h>

#include "tools/e2e_bench/configuration.hpp"
#include "tools/e2e_bench/data_parallel_case.hpp"
#include "tools/e2e_bench/model_case.hpp"
#include "tools/e2e_bench/operations.hpp"
#include "tools/e2e_bench/toy_amp.hpp"
#include "tools/e2e_bench/training_case.hpp"
#include "tools/harness/launch/options.hpp"

namespace warpmeter::e2e_bench {

std::string ModelTool::summary() const {
  return "Time and memory of a GPT-style model, from the forward to the optimizer step.";
}

void ModelTool::add_options(harness::OptionTable& table) const {
  e2e_bench::add_options(table);
  add_data_parallel_options(table);
}

void ModelTool::adjust(const harness::OptionTable& table, harness::Settings& settings) const {
  rows_ = wants_data_parallel(table)   ? Rows::data_parallel
          : table.flag("--breakdown")  ? Rows::operations
          : table.flag("--dtypes")     ? Rows::types
          : table.has("--train-steps") ? Rows::training
                                       : Rows::phases;
  if (rows_ == Rows::data_parallel) adjust_data_parallel(table, settings);
  verified_ = table.has("--verify");
  const std::string modes = ',' + table.text("--mode") + ',';
  step_stands_alone_ =
      modes.find(",train_step,") != std::string::npos && modes.find(",forward_backward,") == std::string::npos;
}

std::string ModelTool::default_preset(Device device) const {
  return device.is_cuda() ? "notes" : "quick";
}

std::string ModelTool::preset_for(const harness::OptionTable& table, Device device) const {
  return wants_data_parallel(table) ? "" : default_preset(device);
}

std::string ModelTool::list(const harness::OptionTable& /*table*/) const {
  std::string text = "Sizes (d_model, d_ff, layers, heads, parameters):\n";
  for (const transformer::NamedSize& size : transformer::named_sizes()) {
    const transformer::ModelConfig& c = size.config;
    text += fmt::format("  {:<8} {:>5} {:>6} {:>3} {:>3} {:>14}\n", size.name, c.d_model, c.d_ff, c.layers, c.heads,
                        c.parameters());
  }
  text += "Precisions (products, activations and weights, master, gradients, moments):\n";
  for (const transformer::PrecisionPolicy& policy : transformer::precision_policies()) {
    const char* master = policy.master == layers::MasterKind::none   ? "no master"
                         : policy.master == layers::MasterKind::copy ? "fp32 master"
                                                                     : "fp32 master as bf16 + 16 bits";
    text += fmt::format("  {:<10} {:<5} {:<5} {:<30} {:<5} {}{}\n", policy.name, warpmeter::name(policy.compute),
                        warpmeter::name(policy.activation), master, warpmeter::name(policy.gradient),
                        warpmeter::name(policy.moment), policy.loss_scaling ? ", dynamic loss scale" : "");
  }
  return text;
}

namespace {

std::vector<std::string> operation_names(const harness::OptionTable& table) {
  std::vector<std::string> names;
  if (!table.has("--operation")) return names;
  std::istringstream text(table.text("--operation"));
  for (std::string name; std::getline(text, name, ',');) names.push_back(name);
  return names;
}

}  // namespace

std::vector<std::unique_ptr<harness::Case>> ModelTool::cases(const harness::OptionTable& table,
                                                             const harness::Settings& settings) const {
  const std::vector<std::string> only = operation_names(table);
  std::vector<std::unique_ptr<harness::Case>> cases;
  if (rows_ == Rows::data_parallel) {
    const auto rows = std::make_shared<DataParallelRows>(
        DataParallelRows{harness::launch::Groups(argv_, harness::launch::timeout_s(table), joined_)});
    std::size_t index = 0;
    for (DataParallelConfiguration& c : expand_data_parallel(table, settings, joined_ ? joined_->size() : 0)) {
      cases.push_back(std::make_unique<DataParallelCase>(std::move(c), index++, settings.device, rows));
    }
    return cases;
  }
  check_data_parallel_options(table);
  for (Configuration& configuration : expand(table, settings)) {
    std::vector<std::unique_ptr<harness::Case>> rows;
    if (rows_ == Rows::training) {
      rows.push_back(std::make_unique<TrainingCase>(std::move(configuration), settings.device));
    } else if (rows_ == Rows::phases) {
      rows.push_back(std::make_unique<ModelCase>(std::move(configuration), settings.device));
    } else if (configuration.size == kToyAmp) {
      rows = toy_type_cases(configuration, settings.device, only);
    } else if (configuration.implementation(settings.device) == nullptr) {
      rows.push_back(unsupported_operation(configuration, settings.device));
    } else {
      const auto make = rows_ == Rows::operations ? breakdown_cases : type_cases;
      rows = make(configuration, settings.device, only);
    }
    std::move(rows.begin(), rows.end(), std::back_inserter(cases));
  }
  if (cases.empty() && !only.empty())
    throw table.error("--operation", "no row has that name; without it all are shown");
  return cases;
}

reports::TableLayout ModelTool::layout() const {
  if (rows_ == Rows::data_parallel) return data_parallel_layout(verified_);
  reports::TableLayout layout;
  if (rows_ == Rows::operations || rows_ == Rows::types) {
    layout.group_by = {"size", "precision", "structure", "attention", "context", "phase"};
    layout.columns = {"operation", "dtype",    "kind",      "calls",   "op_ms",    "time_share",     "flops_share",
                      "op_flops",  "op_bytes", "op_tflops", "op_gbps", "op_bound", "op_bound_share", "status"};
    layout.wide_columns = {"batch", "op_us_per_call"};
    return layout;
  }
  layout.group_by = {"precision", "structure", "context"};
  layout.columns = {"size",        "d_model",    "d_ff",        "num_layers",       "num_heads",
                    "parameters",  "fwd_s",      "fwd_bwd_s",   "fwd_peak_mem_mib", "train_peak_mem_mib",
                    "train_steps", "entropy",    "first_loss",  "final_loss",       "loss_over_entropy",
                    "updates",     "training_s", "curve_steps", "curve_losses",     "status"};
  // Beside Forward+Backward the step's time is --wide's, as the notes' table ends there; alone it is the answer.
  if (step_stands_alone_)
    layout.columns.insert(std::find(layout.columns.begin(), layout.columns.end(), "fwd_peak_mem_mib"), "train_step_s");
  layout.headings = {{"size", "Size"},
                     {"parameters", "Parameters"},
                     {"fwd_s", "Forward (s)"},
                     {"fwd_bwd_s", "Forward+Backward (s)"},
                     {"train_step_s", "Train Step (s)"},
                     {"fwd_peak_mem_mib", "Peak Forward Mem (MiB)"},
                     {"train_peak_mem_mib", "Peak Train Mem (MiB)"}};
  layout.wide_columns = {"batch",       "vocab",          "attention",       "recompute",      "graph",
                         "side_stream", "fused_products", "adamw",           "train_step_s",   "tokens_per_s",
                         "fwd_mfu",     "train_step_mfu", "mfu_peak_tflops", "mfu_peak_source"};
  for (const std::string phase : {"fwd", "fwd_bwd", "train_step"}) {
    for (const char* figure : {"_first_ms", "_ms", "_mean_ms", "_min_ms", "_p95_ms", "_stdev_ms", "_noise", "_n",
                               "_stop", "_flops", "_tflops", "_gemm_share"}) {
      layout.wide_columns.push_back(phase + figure);
    }
  }
  for (const char* column :
       {"fwd_predicted_peak_mem_mib", "train_predicted_peak_mem_mib", "predicted_parameters_mib",
        "predicted_gradients_mib", "predicted_optimizer_mib", "predicted_activations_mib", "predicted_logits_mib",
        "predicted_workspace_mib", "loss", "loss_expected", "skipped_steps", "loss_scale"}) {
    layout.wide_columns.emplace_back(column);
  }
  return layout;
}

std::vector<std::string> ModelTool::row_keys() const {
  if (rows_ == Rows::data_parallel) return data_parallel_row_keys();
  std::vector<std::string> keys = e2e_bench::row_keys();
  if (rows_ == Rows::training) keys.emplace_back("train_steps");
  if (rows_ == Rows::operations || rows_ == Rows::types) keys.insert(keys.end(), {"phase", "operation"});
  return keys;
}

}  // namespace warpmeter::e2e_bench
