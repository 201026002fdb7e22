#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace warpmeter::harness::detail {

/// One spelling on the command line: "--causal" and "--no-causal" are two.
struct Switch {
  std::string long_name;   ///< with its dashes
  std::string short_name;  ///< with its dash, or empty
  bool takes_value = false;
  bool value_optional = false;  ///< with takes_value: may stand alone
};

struct CommandLine {
  /// For each switch, in the order given, what every occurrence brought: its value, "" where the value is missing or
  /// left out. For those that take none: "" or what stood behind `=`.
  std::vector<std::vector<std::string>> occurrences;
  std::vector<std::string> unknown;  ///< arguments that belong to no switch, in order
};

/// Sorts arguments (without argv[0]) by switch. Judges nothing but `--name=` with nothing behind it, which throws
/// UsageError. `-5` is a value, since no switch is named by a digit. The only file that knows CLI11.
[[nodiscard]] CommandLine split_command_line(const std::vector<Switch>& switches,
                                             const std::vector<std::string>& arguments);

}  // namespace warpmeter::harness::detail
