#include <random>

#include <gtest/gtest.h>

#include "tests/tools/harness/option_test_table.hpp"
#include "tools/harness/detail/config_file.hpp"
#include "tools/harness/option_table.hpp"

namespace warpmeter::harness {
namespace {

using Texts = std::vector<std::string>;

/// The table after `content` as a configuration file, with `more` on the command line.
OptionTable configured(const std::string& content, const std::vector<std::string>& more = {}) {
  const TemporaryFile file(content);
  OptionTable table = make_fake_table();
  std::vector<std::string> arguments{"--config", file.path()};
  arguments.insert(arguments.end(), more.begin(), more.end());
  parse(table, arguments);
  return table;
}

/// The usage error of `content`, the file's path written FILE.
std::string config_error(const std::string& content) {
  const TemporaryFile file(content);
  std::string line = parse_error({"--config", file.path()});
  for (std::size_t at; (at = line.find(file.path())) != std::string::npos;)
    line.replace(at, file.path().size(), "FILE");
  return line;
}

TEST(OptionConfig, ReadsStringsNumbersTruthValuesAndArrays) {
  const OptionTable table = configured(
      "# a comment\n"
      "seq-len = 256          # an integer\n"
      "max-time = 0.5\r\n"
      "\n"
      "isolate = true\n"
      "check = false\n"
      "impl = [\"naive\",\n  'flash',  # over lines\n]\n"
      "causal = \"both\"\n"
      "sizes = [1024, \"1MiB\"]\n"
      "\"label\" = 'a \\ b'\n"
      "output = [\"a.md\", \"b, c.json\"]\n"
      "memory-limit = 1_000_000");
  EXPECT_EQ(table.text("--seq-len"), "256");
  EXPECT_EQ(table.text("--max-time"), "0.5");
  EXPECT_TRUE(table.flag("--isolate"));
  EXPECT_FALSE(table.flag("--check"));
  EXPECT_EQ(table.text("--impl"), "naive,flash");
  EXPECT_EQ(table.text("--causal"), "true,false");
  EXPECT_EQ(table.sizes("--sizes"), (std::vector<std::uint64_t>{1024, 1048576}));
  EXPECT_EQ(table.text("--label"), "a \\ b");
  EXPECT_EQ(table.texts("--output"), (Texts{"a.md", "b, c.json"}));
  EXPECT_EQ(table.text("--memory-limit"), "1000000");
  EXPECT_EQ(table.source("--seq-len"), OptionSource::config);
  EXPECT_TRUE(table.given("--seq-len"));
}

TEST(OptionConfig, AnEmptyFileSetsNothing) {
  for (const char* content : {"", "\n\n", "# nothing", "\xef\xbb\xbf# after a byte order mark\n"}) {
    EXPECT_EQ(configured(content).text("--seq-len"), "128");
  }
}

TEST(OptionConfig, ReadsEscapesOfBasicStrings) {
  EXPECT_EQ(configured(R"(label = "a \"b\" \\ \u00e9 \U0001F600")").text("--label"), "a \"b\" \\ \u00e9 \U0001F600");
  EXPECT_EQ(configured("label = \"tab\\tend\"").text("--label"), "tab\tend");
}

TEST(OptionConfig, StandsBetweenCommandLineAndPreset) {
  const OptionTable table = configured("preset = \"notes\"\nseq-len = 64\nwarmup = 1\n", {"--warmup", "2"});
  EXPECT_EQ(table.preset(), "notes");
  EXPECT_EQ(table.text("--impl"), "all");
  EXPECT_EQ(table.text("--seq-len"), "64");
  EXPECT_EQ(table.text("--warmup"), "2");
  EXPECT_EQ(configured("preset = 'notes'", {"--preset", "quick"}).preset(), "quick");
  EXPECT_EQ(configured("output = 'a.md'", {"-o", "b.md"}).texts("--output"), (Texts{"b.md"}));
}

TEST(OptionConfig, TheDefaultPresetStandsUnlessTheFileNamesOne) {
  const TemporaryFile plain("seq-len = 64\n");
  const TemporaryFile named("preset = 'notes'\n");
  OptionTable table = make_fake_table();
  table.set_default_preset("quick");
  parse(table, {"--config", plain.path()});
  EXPECT_EQ(table.preset(), "quick");
  EXPECT_EQ(table.text("--warmup"), "3");
  parse(table, {"--config", named.path()});
  EXPECT_EQ(table.preset(), "notes");
  EXPECT_EQ(table.text("--warmup"), "10");
}

TEST(OptionConfig, UnknownKeysNameKeyFileAndLine) {
  EXPECT_EQ(config_error("seq_len = 5"), "--config 'FILE': line 1: unknown key 'seq_len'; did you mean seq-len?");
  EXPECT_EQ(config_error("\n\nbananas = 5"),
            "--config 'FILE': line 3: unknown key 'bananas'; accepted: the options' names without their dashes");
  EXPECT_EQ(config_error("no-causal = true"), "--config 'FILE': line 1: 'no-causal' is no key; write causal = false");
  EXPECT_EQ(config_error("help = true"), "--config 'FILE': line 1: 'help' is for the command line only");
  EXPECT_EQ(config_error("config = 'x'"), "--config 'FILE': line 1: 'config' is for the command line only");
  EXPECT_EQ(config_error("isolated-child-fd = 3"),
            "--config 'FILE': line 1: unknown key 'isolated-child-fd'; did you mean isolate?");
}

TEST(OptionConfig, MalformedLinesAreErrorsWithTheirLine) {
  const std::string at = "--config 'FILE': line 2: ";
  const auto error = [](const std::string& line) { return config_error("warmup = 1\n" + line + "\nisolate = true\n"); };
  EXPECT_EQ(error("seq-len"), at + "no = behind 'seq-len'; write KEY = VALUE");
  EXPECT_EQ(error("seq-len ="), at + "no value behind seq-len =");
  EXPECT_EQ(error("= 5"), at + "'= 5' is no key; write KEY = VALUE");
  EXPECT_EQ(error("seq-len = 256,512"), at + "',512' behind the value of seq-len; put lists in quotes or brackets");
  EXPECT_EQ(error("seq-len = 256:512:x2"), at + "seq-len = 256:512:x2: put text in quotes");
  EXPECT_EQ(error("seq-len = 0x10"), at + "seq-len = 0x10: put text in quotes");
  EXPECT_EQ(error("seq-len = 012"), at + "seq-len = 012: put text in quotes");
  EXPECT_EQ(error("impl = flash"), at + "impl = flash: put text in quotes");
  EXPECT_EQ(error("impl = @"), at + "'@' is no value of impl; put text in quotes");
  EXPECT_EQ(error("impl = \"flash"), at + "a string without its closing quote");
  EXPECT_EQ(error("impl = \"\"\"flash\"\"\""), at + "multi-line strings are not accepted");
  EXPECT_EQ(error("impl = \"a\\qb\""),
            at + "an unknown escape in a string; write \\\\ for a backslash, or single quotes around");
  EXPECT_EQ(error("impl = \"\\u12\""), at + "\\u and \\U take 4 hexadecimal digits");
  EXPECT_EQ(error("impl = \"\\ud800\""), at + "an escape that is no Unicode character");
  EXPECT_EQ(error("[attn]"), at + "tables are not accepted; write KEY = VALUE");
  EXPECT_EQ(error("a.b = 1"), at + "dotted keys are not accepted ('a.')");
  EXPECT_EQ(error("sizes = [[1]]"), at + "an array within the array of sizes");
  EXPECT_EQ(error("sizes = [1 2]"), at + "no comma between the items of sizes");
  EXPECT_EQ(error("warmup = 2"), at + "'warmup' is set already, on line 1");
  EXPECT_EQ(config_error("sizes = [1,\n2"), at + "the array of sizes has no ]");
}

TEST(OptionConfig, ValuesThatDoNotFitTheirOption) {
  EXPECT_EQ(config_error("isolate = 'maybe'"),
            "--config 'FILE': line 1: isolate = 'maybe' is not a truth value; accepted: true, false");
  EXPECT_EQ(config_error("causal = 1"),
            "--config 'FILE': line 1: causal = '1' is not a truth value; accepted: true, false, \"both\"");
  EXPECT_EQ(config_error("timer = ''"), "--config 'FILE': line 1: timer needs a value; accepted: device, wall");
  EXPECT_EQ(config_error("sizes = []"),
            "--config 'FILE': line 1: sizes needs a value; accepted: sizes, lists and ranges");
  EXPECT_EQ(config_error("preset = 'nots'"),
            "--preset 'nots': unknown preset (did you mean notes?) (from FILE line 1); accepted: notes, quick, fixed");
  EXPECT_EQ(config_error("steps = 5\nmax-time = 1"),
            "--steps 5 and --max-time 1: contradict each other (from FILE line 1); accepted: one of them");
}

TEST(OptionConfig, ABadValueNamesFileAndLineWhenRead) {
  const TemporaryFile file("\nseq-len = '12x'\n");
  OptionTable table = make_fake_table();
  parse(table, {"--config", file.path()});
  EXPECT_EQ(usage_error_of([&] { (void)table.integers("--seq-len", 1, 100); }),
            "--seq-len '12x': not a whole number (from " + file.path() +
                " line 2); accepted: whole numbers from 1, lists and ranges (256:16384:x2)");
}

TEST(OptionConfig, FilesThatCannotBeRead) {
  EXPECT_EQ(parse_error({"--config", "/nonexistent/x.toml"}),
            "--config '/nonexistent/x.toml': cannot be read: No such file or directory; accepted: a TOML file");
  EXPECT_EQ(parse_error({"--config", "/"}), "--config '/': is a directory; accepted: a TOML file");
  EXPECT_EQ(parse_error({"--config", "/dev/zero"}),
            "--config '/dev/zero': is larger than 1 MiB; accepted: a TOML file");
}

/// Every option's texts and the preset in force.
std::vector<Texts> all_texts(const OptionTable& table) {
  std::vector<Texts> all;
  for (const OptionSpec& spec : table.specs()) {
    if (!spec.action && spec.name != "--config" && spec.name != "--preset") all.push_back(table.texts(spec.name));
  }
  all.push_back({table.preset()});
  return all;
}

/// --print-config of `arguments`, read back by --config, must give the same options and the same text again.
void expect_round_trip(const std::vector<std::string>& arguments, const std::string& default_preset = "") {
  OptionTable table = make_fake_table();
  table.set_default_preset(default_preset);
  parse(table, arguments);
  const std::string text = table.config_text();
  const TemporaryFile file(text);
  OptionTable again = make_fake_table();  // another default preset must not show through
  if (!table.preset().empty()) again.set_default_preset("fixed");
  parse(again, {"--config", file.path()});
  EXPECT_EQ(all_texts(again), all_texts(table)) << text;
  EXPECT_EQ(again.config_text(), text);
}

TEST(OptionConfig, PrintConfigReadsBackForEveryOption) {
  expect_round_trip({});
  OptionTable table = make_fake_table();
  for (const OptionSpec& spec : table.specs()) {
    if (spec.action || spec.hidden || spec.name == "--config" || spec.name == "--preset") continue;
    if (!spec.negation.empty()) expect_round_trip({spec.negation});
    if (spec.metavar.empty()) {
      expect_round_trip({spec.name});
      continue;
    }
    if (!spec.negation.empty()) {
      expect_round_trip({spec.name + "=both"});
      expect_round_trip({spec.name + "=false,true"});
      continue;
    }
    for (const char* value : {"5", "0.5", "007", "1.", "1e5", "a,b", "a b", "it's", "say \"x\"", "back\\slash", "#no",
                              "true", "\xc3\xa9", "tab\there", "new\nline", "[1,2]", "=", "99999999999999999999"}) {
      expect_round_trip({spec.name + "=" + value});
    }
  }
}

TEST(OptionConfig, PrintConfigReadsBackForCombinations) {
  expect_round_trip({"-o", "a.md", "-o", "b, 'c'.json"});
  expect_round_trip({"--preset", "notes", "--seq-len", "64"});
  expect_round_trip({"--preset", "quick", "--steps", "5", "--no-check"});
  expect_round_trip({"--preset", "fixed", "--max-time", "3"});
  expect_round_trip({}, "quick");
  expect_round_trip({"--seq-len", "1:9:x2", "--label", "x"}, "notes");
}

TEST(OptionConfig, PrintConfigShowsWhatStandsAnyway) {
  OptionTable table = make_fake_table();
  parse(table, {"--preset", "quick", "--seq-len", "64", "--isolate"});
  const std::string text = table.config_text();
  EXPECT_NE(text.find("\npreset = \"quick\"\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\nseq-len = 64\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\nisolate = true\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\n# warmup = 3  # preset quick\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\n# timer = \"device\"  # default\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\n# steps is not set\n"), std::string::npos) << text;
}

TEST(OptionConfig, RandomBytesAreReadOrRefusedInOneLine) {
  std::mt19937_64 random(23);
  const std::string alphabet = "ab-_.=\"'\\[],#\n\r\t 019+eu{}:";
  for (int round = 0; round < 20000; ++round) {
    std::string content;
    for (std::size_t size = random() % 24; content.size() < size;) content += alphabet[random() % alphabet.size()];
    try {
      (void)detail::parse_config(content, "x.toml");
    } catch (const UsageError& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    }
  }
}

TEST(OptionConfig, StringsReadBackWhatIsWritten) {
  std::mt19937_64 random(29);
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (std::size_t size = 1 + random() % 12; text.size() < size;) text += static_cast<char>(random() % 256);
    const auto entries = detail::parse_config("key = " + detail::toml_value(text), "x.toml");
    ASSERT_EQ(entries.size(), 1u);
    EXPECT_EQ(entries[0].texts, (Texts{text}));
  }
}

}  // namespace
}  // namespace warpmeter::harness
