#include "tools/attn_bench/configuration.hpp"

#include <gtest/gtest.h>

#include "tools/attn_bench/presets.hpp"

namespace warpmeter::attn_bench {
namespace {

std::vector<Configuration> expanded(std::vector<const char*> arguments, std::vector<DType> dtypes = {DType::fp32}) {
  harness::OptionTable table("attn_bench", "test");
  harness::add_shared_options(table);
  add_options(table);
  arguments.insert(arguments.begin(), "attn_bench");
  table.parse(static_cast<int>(arguments.size()), arguments.data());
  harness::Settings settings;
  settings.dtypes = std::move(dtypes);
  return expand(table, settings);
}

std::string usage_error(const std::vector<const char*>& arguments) {
  try {
    (void)expanded(arguments);
  } catch (const harness::UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(Configuration, DefaultsAreTheNotesShape) {
  const auto all = expanded({"--impl", "flash"});
  ASSERT_EQ(all.size(), 1u);
  const attention::AttentionProblem& p = all[0].problem;
  EXPECT_EQ(p.batch, 8);
  EXPECT_EQ(p.num_heads, 1);
  EXPECT_EQ(p.num_kv_heads, 1);
  EXPECT_EQ(p.head_dim, 64);
  EXPECT_EQ(p.seq_len, 1024);
  EXPECT_EQ(p.kv_len, 1024);
  EXPECT_TRUE(p.causal);
  EXPECT_TRUE(all[0].forward && all[0].backward);
  EXPECT_EQ(all[0].passes(), "fwd,bwd");
}

TEST(Configuration, OrderIsImplementationThenTypeThenWidthThenLength) {
  const auto all =
      expanded({"--impl", "naive,flash", "--d-model", "16,32", "--seq-len", "64,128"}, {DType::fp32, DType::bf16});
  ASSERT_EQ(all.size(), 16u);
  EXPECT_EQ(all[0].impl, "naive");
  EXPECT_EQ(all[1].problem.seq_len, 128);
  EXPECT_EQ(all[2].problem.head_dim, 32);
  EXPECT_EQ(all[4].problem.dtype, DType::bf16);
  EXPECT_EQ(all[8].impl, "flash");
}

TEST(Configuration, HeadsSplitTheModelWidth) {
  const auto all =
      expanded({"--impl", "flash", "--d-model", "1024", "--heads", "16", "--kv-heads", "4", "--kv-len", "77"});
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].problem.head_dim, 64);
  EXPECT_EQ(all[0].problem.num_kv_heads, 4);
  EXPECT_EQ(all[0].problem.kv_len, 77);
  EXPECT_EQ(all[0].d_model(), 1024);
}

TEST(Configuration, FaGridHoldsTokensAndWidth) {
  const auto all = expanded({"--preset", "fa_grid"}, {DType::bf16});
  ASSERT_EQ(all.size(), 2u * 2u * 6u);
  for (const Configuration& c : all) {
    EXPECT_EQ(c.problem.batch * c.problem.seq_len, 16384);
    EXPECT_EQ(c.d_model(), 2048);
    EXPECT_TRUE(c.problem.head_dim == 64 || c.problem.head_dim == 128);
  }
}

TEST(Configuration, ABatchBesideThePresetWinsOverItsTokens) {
  const auto all =
      expanded({"--preset", "fa_grid", "--batch", "2", "--head-dim", "128", "--seq-len", "512"}, {DType::bf16});
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].problem.batch, 2);
}

TEST(Configuration, NotesAndLeaderboardHaveTheirShapes) {
  EXPECT_EQ(expanded({"--preset", "notes"}).size(), 3u * 4u * 5u);
  const auto all = expanded({"--preset", "leaderboard"}, {DType::bf16});
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].problem.batch, 3);
  EXPECT_EQ(all[0].problem.num_heads, 16);
  EXPECT_EQ(all[0].problem.head_dim, 64);
  EXPECT_EQ(all[0].problem.seq_len, 16384);
}

TEST(Configuration, CausalBothIsTwoRows) {
  const auto all = expanded({"--impl", "flash", "--causal=both"});
  ASSERT_EQ(all.size(), 2u);
  EXPECT_TRUE(all[0].problem.causal);
  EXPECT_FALSE(all[1].problem.causal);
  EXPECT_FALSE(expanded({"--impl", "flash", "--no-causal"})[0].problem.causal);
}

TEST(Configuration, OnePassOnly) {
  EXPECT_EQ(expanded({"--impl", "flash", "--pass", "fwd"})[0].passes(), "fwd");
  EXPECT_EQ(expanded({"--impl", "flash", "--pass", "bwd"})[0].passes(), "bwd");
}

TEST(Configuration, ContradictionsAndImpossibleShapesNameTheOption) {
  const auto names = [](const std::string& text, std::initializer_list<const char*> words) {
    for (const char* word : words) EXPECT_NE(text.find(word), std::string::npos) << text << " lacks " << word;
    EXPECT_EQ(text.find('\n'), std::string::npos);
  };
  names(usage_error({"--heads", "3", "--d-model", "64"}), {"--heads", "3", "64", "accepted"});
  names(usage_error({"--heads", "8", "--d-model", "64", "--kv-heads", "3"}), {"--kv-heads", "3", "8", "accepted"});
  names(usage_error({"--d-model", "512"}), {"--d-model", "512", "256"});
  names(usage_error({"--tokens", "100", "--seq-len", "64"}), {"--tokens", "100", "64"});
  names(usage_error({"--tokens", "64", "--batch", "2"}), {"--tokens", "--batch"});
  names(usage_error({"--head-dim", "64", "--heads", "2"}), {"--head-dim", "--heads"});
  names(usage_error({"--seq-len", "0"}), {"--seq-len", "0", "accepted"});
  names(usage_error({"--impl", "fluash"}), {"--impl", "fluash", "flash"});
}

}  // namespace
}  // namespace warpmeter::attn_bench
