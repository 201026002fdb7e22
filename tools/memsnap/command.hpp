#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tools/harness/option_table.hpp"
#include "tools/harness/progress_console.hpp"

namespace warpmeter::memsnap {

/// What a command runs with.
struct CommandLine {
  const harness::OptionTable& options;
  std::vector<std::string> files;  ///< the arguments that are no options
  harness::ProgressConsole& console;
};

/// One of the program's commands.
struct Command {
  std::string_view name;     ///< "summary"
  std::string_view files;    ///< as in the usage line: "FILE", "A B", or ""
  std::string_view summary;  ///< one line
  std::size_t file_count;    ///< how many it takes
  void (*add_options)(harness::OptionTable& table);
  int (*run)(const CommandLine& line);
  /// The form of the command that its arguments ask for, and takes out what only says so; null: there is one form.
  /// Throws UsageError.
  const Command& (*form)(std::vector<std::string>& arguments) = nullptr;
};

/// Splits a command's arguments into options with their values and the rest. After "--" everything is a file.
struct SplitArguments {
  std::vector<std::string> options;
  std::vector<std::string> files;
};
[[nodiscard]] SplitArguments split_arguments(const std::vector<harness::OptionSpec>& specs,
                                             const std::vector<std::string>& arguments);

/// --format and -o FILE of the commands that write a table.
void add_output_options(harness::OptionTable& table, std::string_view formats, std::string_view endings);

/// Prints on stdout; false where nobody reads it any more.
bool print(std::string_view text);

/// Before anything is read or recorded. Throws UsageError for a file that could not be written.
void require_writable(const harness::OptionTable& table, const std::vector<std::string>& outputs);

extern const Command kSummary;
extern const Command kTimeline;
extern const Command kDiff;
extern const Command kCheck;
extern const Command kConvert;
extern const Command kRecord;

}  // namespace warpmeter::memsnap
