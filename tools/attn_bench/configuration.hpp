#pragma once

#include <string>
#include <vector>

#include "kernels/attention/problem.hpp"
#include "tools/harness/option_table.hpp"
#include "tools/harness/settings.hpp"

namespace warpmeter::attn_bench {

/// One row to be: which implementation on which problem, and which passes are timed.
struct Configuration {
  std::string impl;
  attention::AttentionProblem problem;
  bool backward = true;  ///< the forward always runs; without it there is nothing to go back from
  bool forward = true;   ///< time the forward

  /// num_heads x head_dim.
  [[nodiscard]] std::int64_t d_model() const { return problem.num_heads * problem.head_dim; }
  [[nodiscard]] std::string passes() const;  ///< "fwd", "bwd" or "fwd,bwd"
};

/// attn_bench's own options, presets and examples.
void add_options(harness::OptionTable& table);

/// The cross product of the options' lists, implementation and dtype outermost, then head_dim, then lengths, as the
/// notes' tables run. Throws UsageError.
[[nodiscard]] std::vector<Configuration> expand(const harness::OptionTable& table, const harness::Settings& settings);

}  // namespace warpmeter::attn_bench
