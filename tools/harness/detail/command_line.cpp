#include "tools/harness/detail/command_line.hpp"

#include <algorithm>

#include <CLI/CLI.hpp>

#include "tools/harness/usage_error.hpp"

namespace warpmeter::harness::detail {
namespace {

/// CLI11 takes `--name=` for `--name` and would go on to eat the next argument.
void refuse_empty_values(const std::vector<Switch>& switches, const std::vector<std::string>& arguments) {
  for (const std::string& argument : arguments) {
    if (argument == "--") return;
    if (!argument.starts_with("--") || argument.find('=') != argument.size() - 1) continue;
    const std::string_view name(argument.data(), argument.size() - 1);
    for (const Switch& item : switches) {
      if (item.long_name == name) throw UsageError(name, "", "nothing stands behind the =", "");
    }
  }
}

}  // namespace

CommandLine split_command_line(const std::vector<Switch>& switches, const std::vector<std::string>& arguments) {
  refuse_empty_values(switches, arguments);
  CLI::App app;
  app.set_help_flag();
  app.allow_extras();
  std::vector<CLI::Option*> options;
  for (const Switch& item : switches) {
    const std::string names = item.short_name.empty() ? item.long_name : item.short_name + "," + item.long_name;
    CLI::Option* option = item.takes_value ? app.add_option(names) : app.add_flag(names);
    // A value that is missing must come back as an empty result and not as CLI11's exception: the table's own message
    // says what would be accepted.
    if (item.takes_value) option->expected(0, 1);
    option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    options.push_back(option);
  }
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  try {
    app.parse(reversed);
  } catch (const CLI::Error& error) {
    throw UsageError(error.what());
  }
  CommandLine line;
  line.unknown = app.remaining();
  for (std::size_t i = 0; i < switches.size(); ++i) {
    std::vector<std::string> results = options[i]->results();
    if (!switches[i].takes_value) {
      for (std::string& result : results) {
        if (result == "true") result.clear();
      }
    }
    line.occurrences.push_back(std::move(results));
  }
  return line;
}

}  // namespace warpmeter::harness::detail
