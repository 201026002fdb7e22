#include <sstream>

#include <gtest/gtest.h>

#include "tests/tools/harness/option_test_table.hpp"
#include "tools/harness/option_table.hpp"
#include "tools/harness/settings.hpp"

namespace warpmeter::harness {
namespace {

/// One option of every shape, none of the shared ones.
OptionTable small_table() {
  OptionTable table("tiny_bench",
                    "Measures nothing, slowly, and says so in a summary that is long enough to need a "
                    "second line.");
  table.add({.name = "--seq-len",
             .metavar = "LIST",
             .default_text = "128",
             .accepted = "whole numbers from 1, lists and ranges (256:16384:x2)",
             .help = "Query length.",
             .example = "--seq-len 256:16384:x2",
             .group = "Configurations"});
  table.add({.name = "--causal",
             .negation = "--no-causal",
             .metavar = "BOOLS",
             .default_text = "true",
             .help = "Causal mask: a query sees the keys up to its own place, counted from the end of both sequences.",
             .example = "--causal=both",
             .group = "Configurations"});
  table.add({.name = "--check",
             .negation = "--no-check",
             .default_text = "true",
             .help = "Compare with the reference.",
             .example = "--no-check",
             .group = "Measuring"});
  table.add({.name = "--cache",
             .metavar = "STATE",
             .accepted = "cold, hot",
             .help = "State of the cache | before a sample.",
             .example = "--cache hot",
             .group = "Measuring",
             .default_note = "cold on GPUs"});
  table.add({.name = "--isolate", .help = "A process a row.", .example = "--isolate", .group = "Measuring"});
  table.add({.name = "--output",
             .short_name = "-o",
             .metavar = "FILE",
             .help = "Write to FILE.",
             .example = "-o a.md",
             .group = "Output",
             .repeatable = true});
  table.add({.name = "--secret", .metavar = "N", .help = "Not shown.", .group = "Secrets", .hidden = true});
  table.add({.name = "--help", .help = "Print this text.", .example = "--help", .group = "Output", .action = true});
  table.add_presets({{"notes", "the notes' sweep", {{"--seq-len", "256,1024"}, {"--causal", "both"}}},
                     {"quick", "a short one", {{"--check", "false"}, {"--causal", "true"}, {"--isolate", "true"}}}});
  table.set_default_preset("quick");
  table.add_examples({"tiny_bench", "tiny_bench --preset notes -o a.md",
                      "tiny_bench --preset notes --seq-len 256:16384:x2 --causal=both --no-check --cache hot --isolate "
                      "-o a.md"});
  return table;
}

TEST(OptionHelp, IsAsWritten) {
  EXPECT_EQ(small_table().help_text(),
            R"(tiny_bench: Measures nothing, slowly, and says so in a summary that is long enough to need a second
  line.

Usage: tiny_bench [options]

Configurations:
  --seq-len LIST          Query length.
                          Default: 128; accepted: whole numbers from 1, lists and ranges
                          (256:16384:x2)
  --causal[=BOOLS], --no-causal
                          Causal mask: a query sees the keys up to its own place, counted from the
                          end of both sequences.
                          Default: --causal; accepted: --causal, --no-causal or --causal=both

Measuring:
  --check, --no-check     Compare with the reference.
                          Default: --check
  --cache STATE           State of the cache | before a sample.
                          Default: cold on GPUs; accepted: cold, hot
  --isolate               A process a row.

Output:
  -o, --output FILE       Write to FILE.
  --help                  Print this text.

Presets (options given beside one win):
  notes                   the notes' sweep
                          --seq-len 256,1024 --causal=both
  quick                   a short one (the default here)
                          --no-check --causal --isolate

Examples:
  tiny_bench
  tiny_bench --preset notes -o a.md
  tiny_bench --preset notes --seq-len 256:16384:x2 --causal=both --no-check --cache hot --isolate \
      -o a.md
)");
}

TEST(OptionHelp, MarkdownIsAsWritten) {
  EXPECT_EQ(small_table().markdown_text(),
            R"(### Configurations

| Option | Default | Accepted | What it does | Example |
|---|---|---|---|---|
| `--seq-len LIST` | `128` | whole numbers from 1, lists and ranges (256:16384:x2) | Query length. | `--seq-len 256:16384:x2` |
| `--causal[=BOOLS], --no-causal` | `--causal` | --causal, --no-causal or --causal=both | Causal mask: a query sees the keys up to its own place, counted from the end of both sequences. | `--causal=both` |

### Measuring

| Option | Default | Accepted | What it does | Example |
|---|---|---|---|---|
| `--check, --no-check` | `--check` |  | Compare with the reference. | `--no-check` |
| `--cache STATE` | cold on GPUs | cold, hot | State of the cache \| before a sample. | `--cache hot` |
| `--isolate` |  |  | A process a row. | `--isolate` |

### Output

| Option | Default | Accepted | What it does | Example |
|---|---|---|---|---|
| `-o, --output FILE` |  |  | Write to FILE. | `-o a.md` |
| `--help` |  |  | Print this text. | `--help` |

### Presets

| Preset | What it measures | Stands for |
|---|---|---|
| `notes` | the notes' sweep | `--seq-len 256,1024 --causal=both` |
| `quick` | a short one | `--no-check --causal --isolate` |
)");
}

TEST(OptionHelp, FitsAHundredColumns) {
  std::istringstream lines(make_fake_table().help_text());
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 100u) << line;
    EXPECT_FALSE(line.ends_with(' ')) << line;
  }
}

TEST(OptionHelp, EverySharedOptionHasHelpExampleAndAPlaceInBothTexts) {
  OptionTable table("tool", "A tool.");
  add_shared_options(table);
  const std::string help = table.help_text();
  const std::string markdown = table.markdown_text();
  for (const OptionSpec& spec : table.specs()) {
    EXPECT_FALSE(spec.help.empty()) << spec.name;
    EXPECT_FALSE(spec.group.empty()) << spec.name;
    const bool shown = help.find(spec.name) != std::string::npos;
    EXPECT_EQ(shown, !spec.hidden) << spec.name;
    if (spec.hidden) continue;
    EXPECT_NE(markdown.find(spec.name), std::string::npos) << spec.name;
    const auto shows = [&](const std::string& name) {
      return !name.empty() && spec.example.find(name) != std::string::npos;
    };
    EXPECT_TRUE(shows(spec.name) || shows(spec.negation) || shows(spec.short_name)) << spec.name;
    EXPECT_TRUE(spec.metavar.empty() || !spec.accepted.empty()) << spec.name;
  }
}

/// The words of an example, as a shell without quotes would give them.
std::vector<std::string> words_of(const std::string& line) {
  std::istringstream stream(line);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

TEST(OptionHelp, EverySharedExampleParses) {
  const OptionTable table = make_fake_table();
  for (const OptionSpec& spec : table.specs()) {
    if (spec.hidden || spec.name == "--config" || spec.name == "--label") continue;
    EXPECT_EQ(parse_error(words_of(spec.example)), "(accepted)") << spec.example;
  }
}

}  // namespace
}  // namespace warpmeter::harness
