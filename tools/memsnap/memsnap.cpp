#include "tools/memsnap/memsnap.hpp"

#include <algorithm>
#include <array>
#include <csignal>

#include <fmt/core.h>
#include <unistd.h>

#include "reports/reader.hpp"
#include "reports/snapshot/writer.hpp"
#include "tools/harness/provenance.hpp"
#include "tools/harness/sampler.hpp"
#include "tools/harness/sweep_outputs.hpp"
#include "tools/harness/usage_error.hpp"
#include "tools/memsnap/command.hpp"

namespace warpmeter::memsnap {
namespace {

using harness::OptionTable;
using harness::UsageError;

constexpr int kFailure = 1;
constexpr int kUsage = 2;

constexpr std::array<const Command*, 6> kCommands = {&kSummary, &kTimeline, &kDiff, &kCheck, &kConvert, &kRecord};

std::string command_names() {
  std::string names;
  for (const Command* command : kCommands) names += (names.empty() ? "" : ", ") + std::string(command->name);
  return names;
}

std::string help_text() {
  std::string text =
      "memsnap: where the memory goes. Records, reads, explains, compares and draws memory snapshots in\n"
      "PyTorch's own format: those of torch.cuda.memory._dump_snapshot() and those of this suite.\n\n"
      "Usage: memsnap COMMAND [options]\n\n";
  for (const Command* command : kCommands) {
    text += fmt::format("  {:<22} {}\n", fmt::format("{} {}", command->name, command->files), command->summary);
  }
  text +=
      "\nmemsnap COMMAND --help lists a command's options; memsnap --version prints the version.\n\n"
      "Examples:\n"
      "  memsnap summary snapshot.pickle\n"
      "  memsnap timeline snapshot.pickle -o page.html\n"
      "  memsnap diff fp32.pickle bf16.pickle\n"
      "  memsnap record --size small --mode train_step --precision bf16 -o small.pickle\n"
      "  memsnap record --attention --impl naive --seq-len 4096 -o naive.pickle\n";
  return text;
}

OptionTable table_of(const Command& command) {
  OptionTable table(fmt::format("memsnap {}", command.name), std::string(command.summary));
  if (command.file_count != 0) table.set_operands(std::string(command.files));
  command.add_options(table);
  const auto action = [&](std::string name, std::string help, bool hidden = false) {
    table.add(
        {.name = name, .help = std::move(help), .example = name, .group = "Help", .hidden = hidden, .action = true});
  };
  action("--help", "Print this text.");
  action("--help-markdown", "Print the options as Markdown tables.", true);
  return table;
}

int run_command(const Command& command, std::vector<std::string> arguments, harness::ProgressConsole& console) {
  OptionTable table = table_of(command);
  SplitArguments split = split_arguments(table.specs(), arguments);
  std::vector<const char*> argv{"memsnap"};
  for (const std::string& option : split.options) argv.push_back(option.c_str());
  table.parse(static_cast<int>(argv.size()), argv.data());
  switch (table.action()) {
    case OptionTable::Action::help:
      return print(table.help_text()) ? 0 : kFailure;
    case OptionTable::Action::help_markdown:
      return print(table.markdown_text()) ? 0 : kFailure;
    case OptionTable::Action::print_config:
      return print(table.config_text()) ? 0 : kFailure;
    default:
      break;
  }
  if (split.files.size() != command.file_count) {
    throw UsageError(fmt::format("{} takes {}, not {}; accepted: memsnap {} {}", command.name,
                                 command.file_count == 0   ? "no file"
                                 : command.file_count == 1 ? "one file"
                                                           : "two files",
                                 split.files.size(), command.name,
                                 command.files.empty() ? "[options]" : command.files));
  }
  return command.run({table, std::move(split.files), console});
}

int run(int argc, const char* const* argv, harness::ProgressConsole& console) {
  std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  if (arguments.empty()) throw UsageError(fmt::format("no command; accepted: {}", command_names()));
  const std::string first = arguments.front();
  if (first == "--help" || first == "-h" || first == "help") return print(help_text()) ? 0 : kFailure;
  if (first == "--version") return print(harness::version_text("memsnap")) ? 0 : kFailure;
  const auto found =
      std::find_if(kCommands.begin(), kCommands.end(), [&](const Command* c) { return c->name == first; });
  if (found == kCommands.end()) throw UsageError("command", first, "there is none of that name", command_names());
  arguments.erase(arguments.begin());
  const Command& command = (*found)->form != nullptr ? (*found)->form(arguments) : **found;
  return run_command(command, std::move(arguments), console);
}

}  // namespace

SplitArguments split_arguments(const std::vector<harness::OptionSpec>& specs,
                               const std::vector<std::string>& arguments) {
  SplitArguments split;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--") {
      split.files.insert(split.files.end(), arguments.begin() + static_cast<std::ptrdiff_t>(i) + 1, arguments.end());
      break;
    }
    if (argument.size() < 2 || argument[0] != '-') {
      split.files.push_back(argument);
      continue;
    }
    split.options.push_back(argument);
    const auto spec = std::find_if(specs.begin(), specs.end(), [&](const harness::OptionSpec& s) {
      return s.name == argument || (!s.short_name.empty() && s.short_name == argument);
    });
    // A flag, a swept flag among them, takes a value only with "=".
    const bool takes_value = spec != specs.end() && !spec->metavar.empty() && spec->negation.empty();
    if (takes_value && i + 1 < arguments.size()) split.options.push_back(arguments[++i]);
  }
  return split;
}

void add_output_options(OptionTable& table, std::string_view formats, std::string_view endings) {
  const std::string group = "Output";
  if (!formats.empty()) {
    table.add({.name = "--format",
               .metavar = "NAME",
               .default_text = "md",
               .accepted = std::string(formats),
               .help = "Format on stdout.",
               .example = "--format json",
               .group = group,
               .output_option = true});
  }
  table.add({.name = "--output",
             .short_name = "-o",
             .metavar = "FILE",
             .accepted = fmt::format("file names that end in {}", endings),
             .help = "Write to FILE, in the format of its ending. May be repeated.",
             .example = fmt::format("-o out{}", endings.substr(0, endings.find_first_of(", "))),
             .group = group,
             .repeatable = true,
             .output_option = true});
}

bool print(std::string_view text) {
  harness::ProgressConsole console("memsnap");
  return harness::print_text(text, console);
}

void require_writable(const OptionTable& table, const std::vector<std::string>& outputs) {
  for (const std::string& path : outputs) {
    if (const std::string reason = reports::snapshot::why_not_writable(path); !reason.empty()) {
      throw table.error("--output", path, fmt::format("cannot be written: {}", reason));
    }
  }
}

int run_memsnap(int argc, const char* const* argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a reader that leaves is an error of write()
  std::signal(SIGXFSZ, SIG_IGN);
  harness::ProgressConsole console("memsnap");
  try {
    return run(argc, argv, console);
  } catch (const UsageError& e) {
    console.line(e.what());
    return kUsage;
  } catch (const reports::ReadError& e) {
    console.line(e.what());
    return kUsage;
  } catch (const harness::Interrupted&) {
    console.line("interrupted");
    return 130;
  } catch (const std::exception& e) {
    console.line(e.what());
  } catch (...) {
    console.line("an exception of an unknown type");
  }
  return kFailure;
}

}  // namespace warpmeter::memsnap
