#include "tests/tools/harness/option_test_table.hpp"

#include <filesystem>
#include <fstream>
#include <stdexcept>

#include <stdlib.h>

#include "tools/harness/settings.hpp"

namespace warpmeter::harness {

OptionTable make_fake_table() {
  OptionTable table("fake_bench", "Measures nothing, for tests.");
  add_shared_options(table);
  table.add({.name = "--impl",
             .metavar = "NAMES",
             .default_text = "naive",
             .accepted = "naive, fused, flash, all",
             .help = "What to measure.",
             .example = "--impl flash",
             .group = "Configurations",
             .row_option = true});
  table.add({.name = "--seq-len",
             .metavar = "LIST",
             .default_text = "128",
             .accepted = "whole numbers from 1, lists and ranges (256:16384:x2)",
             .help = "Query length.",
             .example = "--seq-len 256:16384:x2",
             .group = "Configurations",
             .row_option = true});
  table.add({.name = "--kv-len",
             .metavar = "LIST",
             .accepted = "whole numbers from 1, lists and ranges",
             .help = "Key and value length.",
             .example = "--kv-len 512",
             .group = "Configurations",
             .row_option = true,
             .default_note = "as --seq-len"});
  table.add({.name = "--sizes",
             .metavar = "SIZES",
             .default_text = "1MiB",
             .accepted = "sizes, lists and ranges",
             .help = "Bytes to move.",
             .example = "--sizes 8:1GiB:x2",
             .group = "Configurations",
             .row_option = true});
  table.add({.name = "--causal",
             .negation = "--no-causal",
             .metavar = "BOOLS",
             .default_text = "true",
             .help = "Causal mask.",
             .example = "--causal=both",
             .group = "Configurations",
             .row_option = true});
  table.add({.name = "--deterministic",
             .help = "Same bits on every run.",
             .example = "--deterministic",
             .group = "Configurations",
             .row_option = true});
  table.add({.name = "--label",
             .metavar = "TEXT",
             .accepted = "any text",
             .help = "A text | of one's own.",
             .example = "--label 'run 1'",
             .group = "Configurations"});
  table.add_presets(
      {{"notes", "the notes' sweep", {{"--impl", "all"}, {"--seq-len", "256,1024"}, {"--causal", "true"}}},
       {"quick",
        "a short sweep",
        {{"--impl", "naive,flash"}, {"--warmup", "3"}, {"--max-time", "0.4"}, {"--causal", "both"}}},
       {"fixed", "ten samples", {{"--steps", "10"}}}});
  table.add_examples({"fake_bench", "fake_bench --preset notes --seq-len 64"});
  return table;
}

void parse(OptionTable& table, const std::vector<std::string>& arguments) {
  std::vector<const char*> argv{"fake_bench"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  table.parse(static_cast<int>(argv.size()), argv.data());
}

std::string usage_error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "(accepted)";
}

std::string parse_error(const std::vector<std::string>& arguments) {
  OptionTable table = make_fake_table();
  return usage_error_of([&] { parse(table, arguments); });
}

TemporaryFile::TemporaryFile(const std::string& content, const std::string& name) {
  std::string pattern = (std::filesystem::temp_directory_path() / "warpmeter-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary directory");
  directory_ = pattern;
  path_ = directory_ + "/" + name;
  std::ofstream(path_, std::ios::binary) << content;
}

TemporaryFile::~TemporaryFile() {
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

}  // namespace warpmeter::harness
