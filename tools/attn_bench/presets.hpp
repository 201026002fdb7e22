#pragma once

#include <vector>

#include "tools/harness/option_table.hpp"

namespace warpmeter::attn_bench {

/// The named sweeps of --preset.
[[nodiscard]] std::vector<harness::Preset> presets();

}  // namespace warpmeter::attn_bench
