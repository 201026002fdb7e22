#pragma once

#include <string>
#include <vector>

#include "kernels/primer/kernel.hpp"
#include "tools/harness/option_table.hpp"
#include "tools/harness/settings.hpp"

namespace warpmeter::kernel_bench {

/// One row to be.
struct Configuration {
  const primer::Kernel* kernel;
  primer::Problem problem;
};

/// "--kernel-size"
[[nodiscard]] std::string option_of(primer::Size size);

/// kernel_bench's own options, presets and examples.
void add_options(harness::OptionTable& table);

/// Kernels outermost, then dtypes, then the sizes that the kernel has: a size that it does not have makes no rows of
/// its own. Throws UsageError.
[[nodiscard]] std::vector<Configuration> expand(const harness::OptionTable& table, const harness::Settings& settings);

}  // namespace warpmeter::kernel_bench
