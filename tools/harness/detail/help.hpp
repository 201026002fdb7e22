#pragma once

#include <string>
#include <vector>

#include "tools/harness/option_table.hpp"

namespace warpmeter::harness::detail {

/// What help is made of; borrows.
struct HelpSource {
  const std::string& program;
  const std::string& summary;
  const std::string& operands;
  const std::vector<OptionSpec>& specs;
  const std::vector<Preset>& presets;
  const std::string& default_preset;
  const std::vector<std::string>& examples;
};

[[nodiscard]] std::string render_help(const HelpSource& source);
[[nodiscard]] std::string render_markdown(const HelpSource& source);

/// The groups of options that are shown, in the order of their first option.
[[nodiscard]] std::vector<std::string> option_groups(const std::vector<OptionSpec>& specs);

/// "--causal, --no-causal", "-o, --output FILE": an option as help writes it.
[[nodiscard]] std::string usage_of(const OptionSpec& spec);

}  // namespace warpmeter::harness::detail
