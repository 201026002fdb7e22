#include "tools/attn_bench/decode_configuration.hpp"

#include <gtest/gtest.h>

#include "tools/attn_bench/configuration.hpp"
#include "tools/attn_bench/modes.hpp"

namespace warpmeter::attn_bench {
namespace {

using attention::Deal;
using attention::Merge;

std::vector<DecodeConfiguration> expanded(std::vector<const char*> arguments) {
  harness::OptionTable table("attn_bench", "test");
  harness::add_shared_options(table);
  add_options(table);
  table.set_default_preset("decode");
  arguments.insert(arguments.begin(), {"attn_bench", "--mode", "decode"});
  table.parse(static_cast<int>(arguments.size()), arguments.data());
  check_mode_options(table);
  harness::Settings settings;
  settings.dtypes = {DType::fp32};
  return expand_decode(table, settings);
}

std::string usage_error(const std::vector<const char*>& arguments) {
  try {
    (void)expanded(arguments);
  } catch (const harness::UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(DecodeConfiguration, DefaultsAreTheNotebooksShapes) {
  const auto all = expanded({});
  ASSERT_EQ(all.size(), 8u);
  EXPECT_EQ(all[0].impl, "naive");
  EXPECT_EQ(all[4].impl, "flash_decode");
  EXPECT_EQ(all[7].kv_len, 32768);
  EXPECT_EQ(all[7].num_heads, 8);
  EXPECT_EQ(all[7].num_kv_heads, 8);
  EXPECT_EQ(all[7].head_dim, 64);
  EXPECT_EQ(all[7].tokens, 1);
  EXPECT_EQ(all[7].options.splits, 0);
  EXPECT_EQ(all[7].options.block, 0);
  EXPECT_EQ(all[7].page_size, 0);
}

TEST(DecodeConfiguration, StreamsAreSweptForFlashDecodeAlone) {
  const auto all = expanded({"--kv-len", "512", "--splits", "auto,1,4", "--block", "16:64:x2", "--merge", "tree,lse",
                             "--deal", "all", "--page-size", "0,64"});
  ASSERT_EQ(all.size(), 1u + 3 * 3 * 2 * 2 * 2);
  EXPECT_EQ(all[1].options.merge, Merge::tree);
  EXPECT_EQ(all[1].options.splits, 0);
  EXPECT_EQ(all[1].options.block, 16);
  EXPECT_EQ(all[2].page_size, 64);
  EXPECT_EQ(all.back().options.merge, Merge::lse);
  EXPECT_EQ(all.back().options.deal, Deal::round_robin);
  EXPECT_EQ(all.back().options.splits, 4);
}

TEST(DecodeConfiguration, ASequentialStreamIsNotSplit) {
  const auto all =
      expanded({"--impl", "flash_decode", "--kv-len", "512", "--splits", "auto,1,4", "--merge", "sequential"});
  EXPECT_EQ(all.size(), 2u);
}

TEST(DecodeConfiguration, AChunkIsSweptOverSplitsAndPages) {
  const auto all = expanded({"--impl", "flash_prefill", "--tokens", "512", "--kv-len", "2048", "--splits", "auto,1,4",
                             "--page-size", "0,64", "--merge", "all"});
  ASSERT_EQ(all.size(), 6u);
  EXPECT_EQ(all[5].options.splits, 4);
  EXPECT_EQ(all[5].page_size, 64);
}

TEST(DecodeConfiguration, TokensStandBesideABatch) {
  const auto all = expanded({"--impl", "flash_decode", "--batch", "16", "--tokens", "8", "--kv-len", "100"});
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].batch, 16);
  EXPECT_EQ(all[0].tokens, 8);
  EXPECT_EQ(all[0].attention_problem().seq_len, 8);
}

TEST(DecodeConfiguration, MistakesNameTheOption) {
  const auto names = [](const std::string& text, std::initializer_list<const char*> words) {
    for (const char* word : words) EXPECT_NE(text.find(word), std::string::npos) << text << " lacks " << word;
  };
  names(usage_error({"--pass", "fwd"}), {"--pass", "decode", "train"});
  names(usage_error({"--seq-len", "8"}), {"--seq-len", "decode"});
  names(usage_error({"--splits", "0"}), {"--splits", "0", "auto"});
  names(usage_error({"--splits", "many"}), {"--splits", "many"});
  names(usage_error({"--block", "8"}), {"--block", "8"});
  names(usage_error({"--page-size", "48"}), {"--page-size", "48", "16"});
  names(usage_error({"--merge", "sum"}), {"--merge", "sum", "two_pass"});
  names(usage_error({"--tokens", "9", "--kv-len", "8"}), {"--tokens", "9", "8"});
  names(usage_error({"--kv-heads", "3"}), {"--kv-heads", "3", "8"});
  names(usage_error({"--impl", "flash_dcode"}), {"--impl", "flash_dcode", "flash_decode"});
}

}  // namespace
}  // namespace warpmeter::attn_bench
