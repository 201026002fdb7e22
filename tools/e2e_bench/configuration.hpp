#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/transformer/model.hpp"
#include "tools/harness/option_table.hpp"
#include "tools/harness/settings.hpp"

namespace warpmeter::e2e_bench {

/// What is timed of a model, in this order.
struct Modes {
  bool forward = true, forward_backward = true, train_step = true;
  [[nodiscard]] bool training() const { return forward_backward || train_step; }
};

/// One row to be: a model, how it is run, and which phases are timed.
struct Configuration {
  std::string size;  ///< "small", or "custom" when no named size has these dimensions
  transformer::ModelConfig model;
  transformer::PrecisionPolicy precision;
  transformer::Structure structure = transformer::Structure::fused;
  std::string attention;
  transformer::Recompute recompute = transformer::Recompute::none;
  bool graph = false;
  layers::AdamwDefinition adamw = layers::AdamwDefinition::torch;
  std::int64_t batch = 4, context = 256;
  Modes modes;
  std::int64_t train_steps = 0;  ///< 0: phases are timed instead
  double learning_rate = 1e-3;

  [[nodiscard]] std::string mode_text() const;
  [[nodiscard]] const attention::Implementation* implementation(Device device) const;
  [[nodiscard]] attention::AttentionProblem problem() const;
  /// `implementation` must be there.
  [[nodiscard]] transformer::ModelOptions options(Device device) const;
  [[nodiscard]] std::int64_t tokens() const { return batch * context; }
};

/// e2e_bench's own options, presets and examples.
void add_options(harness::OptionTable& table);

/// The cross product of the options' lists: precision and structure outermost, then attention, recompute, batch and
/// context, and size last, as the notes' table runs. Throws UsageError.
[[nodiscard]] std::vector<Configuration> expand(const harness::OptionTable& table, const harness::Settings& settings);

/// What identifies a row, further keys of training and operations aside.
[[nodiscard]] std::vector<std::string> row_keys();
[[nodiscard]] reports::Object describe(const Configuration& configuration);
/// The options that repeat it.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> option_values(const Configuration& configuration,
                                                                             Device device);
/// Why this build or device cannot run it.
[[nodiscard]] std::optional<std::string> unsupported(const Configuration& configuration, Device device);

}  // namespace warpmeter::e2e_bench
