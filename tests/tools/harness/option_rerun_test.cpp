#include <random>

#include <gtest/gtest.h>
#include <stdio.h>

#include "tests/tools/harness/option_test_table.hpp"
#include "tools/harness/option_table.hpp"

namespace warpmeter::harness {
namespace {

using Texts = std::vector<std::string>;
using Row = std::vector<std::pair<std::string, std::string>>;

const Row kRow{{"--impl", "flash"}, {"--dtype", "fp32"}, {"--seq-len", "64"}, {"--kv-len", ""}, {"--causal", "false"}};
const Texts kRowArguments{"--impl", "flash", "--dtype", "fp32", "--seq-len", "64", "--no-causal"};

Texts rerun(const Texts& arguments, const std::string& default_preset = "", const Row& row = kRow) {
  OptionTable table = make_fake_table();
  table.set_default_preset(default_preset);
  parse(table, arguments);
  return table.rerun_arguments(row);
}
Texts then_row(Texts first) {
  first.insert(first.end(), kRowArguments.begin(), kRowArguments.end());
  return first;
}

TEST(OptionRerun, IsTheRowAloneWhenNothingElseWasGiven) {
  EXPECT_EQ(rerun({}), kRowArguments);
  EXPECT_EQ(rerun({"--seq-len", "64,128", "--impl", "all"}), kRowArguments);
}

TEST(OptionRerun, KeepsSettingsAndLeavesOutputOut) {
  EXPECT_EQ(rerun({"--warmup", "3", "--no-check", "--isolate", "-o", "a.json", "--wide", "--format=csv", "--samples",
                   "--dry-run", "--label", "it's"}),
            then_row({"--isolate", "--warmup", "3", "--no-check", "--label", "it's"}));
  EXPECT_EQ(rerun({"--warmup", "10"}), kRowArguments);
  EXPECT_EQ(rerun({"--label=-x"}), then_row({"--label=-x"}));
}

TEST(OptionRerun, RowOptionsWithoutARowValueKeepTheirText) {
  EXPECT_EQ(rerun({"--deterministic", "--causal=both"}, "", {{"--seq-len", "8"}}),
            (Texts{"--causal=true,false", "--deterministic", "--seq-len", "8"}));
}

TEST(OptionRerun, NamesThePresetOnlyWhereItMattersBeyondTheRow) {
  EXPECT_EQ(rerun({"--preset", "notes"}), kRowArguments);
  EXPECT_EQ(rerun({"--preset", "quick"}), then_row({"--preset", "quick"}));
  EXPECT_EQ(rerun({}, "quick"), kRowArguments);
  EXPECT_EQ(rerun({"--preset", "notes"}, "quick"), then_row({"--preset", "notes"}));
  EXPECT_EQ(rerun({"--preset", "quick", "--warmup", "10", "--max-time", "2"}, "notes"), then_row({"--max-time", "2"}));
  EXPECT_EQ(rerun({"--warmup", "10"}, "quick"), then_row({"--warmup", "10"}));
}

/// The rerun's options must be the run's own, but for the row's and for output.
void expect_same_settings(const Texts& arguments, const std::string& default_preset) {
  OptionTable table = make_fake_table();
  table.set_default_preset(default_preset);
  parse(table, arguments);
  const Texts line = table.rerun_arguments(kRow);
  OptionTable again = make_fake_table();
  again.set_default_preset(default_preset);
  ASSERT_NO_THROW(parse(again, line)) << shell_line(line);
  for (const OptionSpec& spec : table.specs()) {
    if (spec.output_option || spec.row_option || spec.name == "--preset" || spec.name == "--config") continue;
    EXPECT_EQ(again.texts(spec.name), table.texts(spec.name)) << spec.name << " of " << shell_line(line);
  }
  for (const auto& [name, text] : kRow) {
    if (text.empty()) continue;
    EXPECT_EQ(again.text(name), text) << shell_line(line);
  }
}

TEST(OptionRerun, GivesTheSameSettingsForEveryCombination) {
  const std::vector<Texts> pieces{{"--warmup", "3"},
                                  {"--warmup", "10"},
                                  {"--steps", "10"},
                                  {"--steps", "7"},
                                  {"--max-time", "0.4"},
                                  {"--max-time", "2"},
                                  {"--max-noise", "0.5%"},
                                  {"--preset", "notes"},
                                  {"--preset", "quick"},
                                  {"--preset", "fixed"},
                                  {"--seq-len", "1:9:x2"},
                                  {"--isolate"},
                                  {"--no-check"},
                                  {"--check"},
                                  {"--label", "a 'b' \"c\" $d"}};
  int tried = 0;
  for (const char* default_preset : {"", "notes", "quick", "fixed"}) {
    for (std::size_t a = 0; a < pieces.size(); ++a) {
      for (std::size_t b = a + 1; b < pieces.size(); ++b) {
        for (std::size_t c = b + 1; c < pieces.size(); ++c) {
          Texts arguments = pieces[a];
          arguments.insert(arguments.end(), pieces[b].begin(), pieces[b].end());
          arguments.insert(arguments.end(), pieces[c].begin(), pieces[c].end());
          if (parse_error(arguments) != "(accepted)") continue;
          ++tried;
          expect_same_settings(arguments, default_preset);
        }
      }
    }
  }
  EXPECT_GT(tried, 500);
}

TEST(OptionRerun, ExclusiveOptionsOfFileAndCommandLine) {
  const TemporaryFile file("max-time = 1\nwarmup = 4\n");
  OptionTable table = make_fake_table();
  parse(table, {"--config", file.path(), "--steps", "5"});
  EXPECT_EQ(table.rerun_arguments(kRow), then_row({"--warmup", "4", "--steps", "5"}));
}

TEST(OptionShellLine, QuotesOnlyWhereNeeded) {
  EXPECT_EQ(shell_line({"attn_bench", "--seq-len", "256:1024:x2", "-o", "/tmp/a-b_c.json"}),
            "attn_bench --seq-len 256:1024:x2 -o /tmp/a-b_c.json");
  EXPECT_EQ(shell_line({"a b", "", "it's", "$HOME", "~", "*"}), "'a b' '' 'it'\\''s' '$HOME' '~' '*'");
}

TEST(OptionShellLine, AShellReadsBackTheSameArguments) {
  std::mt19937_64 random(31);
  const std::string alphabet = "ab '\"\\$`!*?[]{}()<>|&;~#=%\n\t-,:";
  std::vector<std::string> arguments;
  for (int i = 0; i < 300; ++i) {
    std::string text;
    for (std::size_t size = random() % 10; text.size() < size;) text += alphabet[random() % alphabet.size()];
    arguments.push_back(text);
  }
  FILE* shell = popen(("printf '%s\\1' " + shell_line(arguments)).c_str(), "r");
  ASSERT_NE(shell, nullptr);
  std::string output;
  for (int c; (c = fgetc(shell)) != EOF;) output += static_cast<char>(c);
  EXPECT_EQ(pclose(shell), 0);
  std::string expected;
  for (const std::string& argument : arguments) expected += argument + '\1';
  EXPECT_EQ(output, expected);
}

}  // namespace
}  // namespace warpmeter::harness
