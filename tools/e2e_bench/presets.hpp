#pragma once

#include <vector>

#include "tools/harness/option_table.hpp"

namespace warpmeter::e2e_bench {

/// The named sweeps of --preset.
[[nodiscard]] std::vector<harness::Preset> presets();

}  // namespace warpmeter::e2e_bench
