#include <gtest/gtest.h>

#include "tools/attn_bench/configuration.hpp"
#include "tools/attn_bench/modes.hpp"
#include "tools/attn_bench/prefill_case.hpp"

namespace warpmeter::attn_bench {
namespace {

std::vector<PrefillConfiguration> expanded(std::vector<const char*> arguments) {
  harness::OptionTable table("attn_bench", "test");
  harness::add_shared_options(table);
  add_options(table);
  table.set_default_preset("prefill");
  arguments.insert(arguments.begin(), {"attn_bench", "--mode", "prefill"});
  table.parse(static_cast<int>(arguments.size()), arguments.data());
  check_mode_options(table);
  harness::Settings settings;
  settings.dtypes = {DType::fp32};
  return expand_prefill(table, settings);
}

std::string usage_error(const std::vector<const char*>& arguments) {
  try {
    (void)expanded(arguments);
  } catch (const harness::UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(PrefillConfiguration, LengthsTimesChunks) {
  const auto all = expanded({});
  ASSERT_EQ(all.size(), 9u);
  EXPECT_EQ(all[0].seq_len, 512);
  EXPECT_EQ(all[1].chunk, 512);
  EXPECT_EQ(all[8].seq_len, 8192);
  EXPECT_EQ(all[8].d_model(), 1024);
  EXPECT_EQ(all[8].head_dim, 64);
  EXPECT_TRUE(all[8].projections);
  EXPECT_FALSE(expanded({"--no-projections"})[0].projections);
}

TEST(PrefillConfiguration, TheNotebooksCases) {
  const auto all = expanded({"--preset", "notebook"});
  ASSERT_EQ(all.size(), 6u);
  EXPECT_EQ(all[0].impl, "naive");
  EXPECT_EQ(all[5].chunk, 512);
  EXPECT_EQ(all[5].seq_len, 8192);
}

TEST(PrefillConfiguration, MistakesNameTheOption) {
  const auto names = [](const std::string& text, std::initializer_list<const char*> words) {
    for (const char* word : words) EXPECT_NE(text.find(word), std::string::npos) << text << " lacks " << word;
  };
  names(usage_error({"--chunk", "0"}), {"--chunk", "0"});
  names(usage_error({"--kv-len", "8"}), {"--kv-len", "prefill", "decode"});
  names(usage_error({"--splits", "4"}), {"--splits", "prefill", "decode"});
  names(usage_error({"--page-size", "5"}), {"--page-size", "5"});
  names(usage_error({"--impl", "flash_decode"}), {"--impl", "flash_decode"});
}

}  // namespace
}  // namespace warpmeter::attn_bench
