#pragma once

#include <string>
#include <vector>

#include "tools/harness/option_table.hpp"

namespace warpmeter::harness::detail {

/// What help is made of; borrows.
struct HelpSource {
  const std::string& program;
  const std::string& summary;
  const std::vector<OptionSpec>& specs;
  const std::vector<Preset>& presets;
  const std::string& default_preset;
  const std::vector<std::string>& examples;
};

[[nodiscard]] std::string render_help(const HelpSource& source);
[[nodiscard]] std::string render_markdown(const HelpSource& source);

/// "--causal, --no-causal", "-o, --output FILE": an option as help writes it.
[[nodiscard]] std::string usage_of(const OptionSpec& spec);

}  // namespace warpmeter::harness::detail
