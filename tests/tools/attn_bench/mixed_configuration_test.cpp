#include <gtest/gtest.h>

#include "tools/attn_bench/configuration.hpp"
#include "tools/attn_bench/mixed_case.hpp"
#include "tools/attn_bench/modes.hpp"

namespace warpmeter::attn_bench {
namespace {

std::vector<MixedConfiguration> expanded(std::vector<const char*> arguments) {
  harness::OptionTable table("attn_bench", "test");
  harness::add_shared_options(table);
  add_options(table);
  table.set_default_preset("mixed");
  arguments.insert(arguments.begin(), {"attn_bench", "--mode", "mixed"});
  table.parse(static_cast<int>(arguments.size()), arguments.data());
  check_mode_options(table);
  harness::Settings settings;
  settings.dtypes = {DType::fp32};
  return expand_mixed(table, settings);
}

std::string usage_error(const std::vector<const char*>& arguments) {
  try {
    (void)expanded(arguments);
  } catch (const harness::UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(MixedConfiguration, ContextsTimesPromptsTimesChunks) {
  const auto all = expanded({"--kv-len", "100,200", "--seq-len", "300", "--chunk", "7,1000", "--batch", "3"});
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all[0].kv_len, 100);
  EXPECT_EQ(all[0].chunk, 7);
  EXPECT_EQ(all[0].steps(), 43);
  EXPECT_EQ(all[1].steps(), 1);
  EXPECT_EQ(all[3].kv_len, 200);
  EXPECT_EQ(all[3].decode_problem().batch, 3);
  EXPECT_EQ(all[3].decode_problem().seq_len, 1);
  EXPECT_EQ(all[3].prompt_problem().batch, 1);
  EXPECT_EQ(all[3].prompt_problem().kv_len, 300);
  EXPECT_EQ(all[3].prompt_cache().sequences, 1);
}

TEST(MixedConfiguration, MistakesNameTheOption) {
  const auto names = [](const std::string& text, std::initializer_list<const char*> words) {
    for (const char* word : words) EXPECT_NE(text.find(word), std::string::npos) << text << " lacks " << word;
  };
  names(usage_error({"--chunk", "0"}), {"--chunk", "0"});
  names(usage_error({"--tokens", "8"}), {"--tokens", "mixed", "decode"});
  names(usage_error({"--splits", "4"}), {"--splits", "mixed", "decode"});
  names(usage_error({"--page-size", "5"}), {"--page-size", "5"});
  names(usage_error({"--tpot-bound", "0"}), {"--tpot-bound", "0"});
  names(usage_error({"--tpot-bound", "fast"}), {"--tpot-bound", "fast"});
}

reports::Row row(const char* impl, std::int64_t chunk, double p99_ms, reports::Status status = reports::Status::ok) {
  reports::Row row;
  row.configuration.set("mode", "mixed");
  row.configuration.set("impl", impl);
  row.configuration.set("batch", 4);
  row.configuration.set("chunk", chunk);
  if (status == reports::Status::ok) row.figures.set("tpot_p99_ms", p99_ms);
  row.status = status;
  return row;
}

TEST(LargestChunks, OfEachImplementationTheLargestWithinTheBound) {
  const std::vector<reports::Row> rows = {row("flash", 512, 0.5), row("flash", 128, 0.2), row("flash", 1024, 0.9),
                                          row("naive", 128, 2), row("flash", 2048, 0, reports::Status::oom)};
  EXPECT_EQ(largest_chunks(rows, 0.5),
            (std::vector<std::string>{"flash batch 4: the largest chunk with P99 within 0.5 ms is 512 (0.5 ms)",
                                      "naive batch 4: none of 1 chunks keeps P99 within 0.5 ms"}));
  EXPECT_TRUE(largest_chunks({row("flash", 8, 0, reports::Status::error)}, 1).empty());
}

}  // namespace
}  // namespace warpmeter::attn_bench
