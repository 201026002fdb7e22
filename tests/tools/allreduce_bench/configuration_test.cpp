#include "tools/allreduce_bench/configuration.hpp"

#include <array>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tools/harness/usage_error.hpp"

namespace warpmeter::allreduce_bench {
namespace {

constexpr std::array<std::string_view, 4> kDTypes = {"fp32", "bf16", "fp16", "int32"};

std::vector<Configuration> expanded(std::vector<const char*> words, int launched = 0) {
  harness::OptionTable table("allreduce_bench", "");
  harness::add_shared_options(table, kDTypes);
  add_options(table);
  std::vector<const char*> argv{"allreduce_bench", "--device", "cpu"};
  argv.insert(argv.end(), words.begin(), words.end());
  table.parse(static_cast<int>(argv.size()), argv.data());
  return expand(table, harness::read_settings(table, kDTypes), launched);
}

std::string refusal(std::vector<const char*> words, int launched = 0) {
  try {
    (void)expanded(std::move(words), launched);
  } catch (const harness::UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(Configurations, TheDefaultIsSharedMemoryAtTheNotesSizes) {
  const auto all = expanded({});
  ASSERT_EQ(all.size(), 4U);
  EXPECT_EQ(all[0].target(), "shm-cpu");
  EXPECT_EQ(all[0].world_size, 2);
  EXPECT_TRUE(all[0].in_place);
  EXPECT_EQ(all[0].buffers, Buffers::registered);
  std::vector<std::string> sizes;
  for (const auto& c : all) sizes.push_back(c.tensor_size());
  EXPECT_EQ(sizes, (std::vector<std::string>{"1MiB", "10MiB", "100MiB", "1GiB"}));
}

TEST(Configurations, TheNotesTable) {
  const auto all = expanded({"--preset", "notes", "--backend", "shm,gloo"});
  ASSERT_EQ(all.size(), 2U * 4 * 4);
  EXPECT_EQ(all[4].world_size, 4);
  EXPECT_EQ(all[16].target(), "gloo-cpu");
  EXPECT_EQ(all[16].buffers, Buffers::plain);
}

TEST(Configurations, SizesFromEightBytes) {
  const auto all = expanded({"--sizes", "8:1GiB:x8,12"});
  ASSERT_EQ(all.size(), 11U);
  EXPECT_EQ(all[0].elements(), 2);
  EXPECT_EQ(all.back().tensor_size(), "12B");
  EXPECT_NE(refusal({"--sizes", "10"}).find("--sizes '10': not a whole number of fp32 elements"), std::string::npos);
  EXPECT_EQ(refusal({"--sizes", "10", "--dtype", "bf16"}), "");
  EXPECT_NE(refusal({"--sizes", "8", "--collective", "reduce_scatter", "--world-size", "3"}).find("3 ranks"),
            std::string::npos);
}

TEST(Configurations, OperationsOnlyWhereSomethingIsReduced) {
  const auto all = expanded({"--collective", "all", "--op", "all", "--sizes", "1KiB", "--in-place=both"});
  // all_reduce and reduce_scatter with four operations, broadcast and all_gather without, each in both places; barrier.
  EXPECT_EQ(all.size(), (2U * 4 + 2) * 2 + 1);
  EXPECT_EQ(all.back().kind, collectives::CollectiveKind::barrier);
  EXPECT_EQ(all.back().rank_bytes(), 0U);
}

TEST(Configurations, BuffersAsAskedOnceEach) {
  EXPECT_EQ(expanded({"--buffers", "auto,registered,plain", "--sizes", "1KiB"}).size(), 2U);
  EXPECT_EQ(expanded({"--buffers", "plain", "--sizes", "1KiB"})[0].buffers, Buffers::plain);
}

TEST(Configurations, ALaunchersRanksAreTheWorld) {
  EXPECT_EQ(expanded({"--sizes", "1KiB"}, 5)[0].world_size, 5);
  EXPECT_EQ(expanded({"--sizes", "1KiB", "--world-size", "5"}, 5).size(), 1U);
  EXPECT_NE(refusal({"--world-size", "2,5"}, 5).find("a launcher has started 5 ranks"), std::string::npos);
}

TEST(Configurations, LeastTrafficAndMemory) {
  Configuration c = expanded({"--sizes", "1200", "--world-size", "3"})[0];
  EXPECT_EQ(c.least_traffic_bytes(), 6 * 1200);
  EXPECT_EQ(c.rank_bytes(), 1200U);
  c.in_place = false;
  EXPECT_EQ(c.rank_bytes(), 2400U);
  c.kind = collectives::CollectiveKind::reduce_scatter;
  EXPECT_EQ(c.least_traffic_bytes(), 3 * 1200 + 1200);
  EXPECT_EQ(c.rank_bytes(), 1600U);
  c.kind = collectives::CollectiveKind::all_gather;
  EXPECT_EQ(c.input_elements(), 100);
  EXPECT_EQ(c.output_elements(), 300);
  EXPECT_EQ(c.least_traffic_bytes(), 1200 + 3 * 1200);
}

}  // namespace
}  // namespace warpmeter::allreduce_bench
