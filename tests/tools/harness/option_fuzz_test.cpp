#include <random>

#include <gtest/gtest.h>

#include "tests/tools/harness/option_test_table.hpp"
#include "tools/harness/settings.hpp"

namespace warpmeter::harness {
namespace {

/// Command lines that work, broken at random: parse() and every reader may throw UsageError, of one line, and nothing
/// else.
TEST(OptionFuzz, BrokenCommandLinesAreUsageErrorsOfOneLine) {
  const std::vector<std::vector<std::string>> seeds{
      {"--seq-len", "256:16384:x2", "--impl", "all", "--causal=both"},
      {"--preset", "notes", "--dtype", "fp32,bf16", "--no-check", "--cache", "cold"},
      {"--sizes", "8:1GiB:x2", "--memory-limit", "1.5GiB", "--max-noise", "0.5%", "--max-time", "2"},
      {"--steps", "5", "-o", "a.json", "--samples", "--seed", "42", "--device", "cpu"},
      {"--isolate", "--row-timeout", "60", "--columns", "a,b", "--label", "it's", "--kv-len=1,2"}};
  const std::vector<std::string> words{
      "--",   "-",        "--seq-len",    "--seq-lne", "--no-causal", "=",     "-o",          "--help=1",
      "-5",   "--config", "/nonexistent", "{}",        "[1,2]",       "",      "\"",          "%%",
      "1e99", "--no-",    "--causal=",    "--x.y",     "++",          "/help", "--isolate=2", "99999999999999999999"};
  const std::string letters = "0189,:x+-.%=eKMGiB\"'[]{}/\\ \n\xff";
  std::mt19937_64 random(20240611);
  const auto pick = [&](std::size_t size) { return static_cast<std::size_t>(random() % size); };
  OptionTable table = make_fake_table();
  int accepted = 0;
  int refused = 0;
  for (int round = 0; round < 6000; ++round) {
    std::vector<std::string> arguments = seeds[pick(seeds.size())];
    for (std::size_t edits = pick(4); edits > 0; --edits) {
      const std::size_t at = pick(arguments.size());
      std::string& argument = arguments[at];
      switch (pick(6)) {
        case 0:
          argument.insert(pick(argument.size() + 1), 1, letters[pick(letters.size())]);
          break;
        case 1:
          argument.erase(pick(argument.size() + 1), 1 + pick(3));
          break;
        case 2:
          argument = words[pick(words.size())];
          break;
        case 3:
          arguments.insert(arguments.begin() + static_cast<std::ptrdiff_t>(at), words[pick(words.size())]);
          break;
        case 4:
          arguments.push_back(argument);
          break;
        default:
          std::swap(argument, arguments[pick(arguments.size())]);
          break;
      }
    }
    try {
      parse(table, arguments);
      (void)read_settings(table);
      (void)table.integers("--seq-len", 1, 1 << 20);
      (void)table.sizes("--sizes");
      (void)table.flags("--causal");
      (void)table.config_text();
      (void)table.rerun_arguments({{"--seq-len", "64"}, {"--causal", "true"}});
      ++accepted;
    } catch (const UsageError& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
      ++refused;
    }
  }
  // Both sides must have been reached often.
  EXPECT_GT(accepted, 1000);
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace warpmeter::harness
