#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tools/harness/option_table.hpp"
#include "tools/harness/settings.hpp"
#include "tools/model_options/setup.hpp"

namespace warpmeter::e2e_bench {

/// What is timed of a model, in this order.
struct Modes {
  bool forward = true, forward_backward = true, train_step = true;
  [[nodiscard]] bool training() const { return forward_backward || train_step; }
};

/// One row to be: a model, how it is run, and which phases are timed.
struct Configuration : model_options::ModelSetup {
  bool graph = false, side_stream = false, fused_products = false;
  Modes modes;
  std::int64_t train_steps = 0;  ///< 0: phases are timed instead

  [[nodiscard]] std::string mode_text() const;
  /// Those of the setup, and whether there is a side stream.
  [[nodiscard]] transformer::ModelOptions options(Device device) const;
};

/// e2e_bench's own options, presets and examples.
void add_options(harness::OptionTable& table);

/// In the order of model_options::expand_models(). Throws UsageError.
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
