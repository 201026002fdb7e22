#include "kernels/data_parallel/shards.hpp"

#include <algorithm>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

namespace warpmeter::data_parallel {
namespace {

using Bytes = std::vector<std::int64_t>;

std::vector<int> owners(const ShardMap& map) {
  std::vector<int> all;
  for (std::size_t i = 0; i < map.size(); ++i) all.push_back(map.owner(i));
  return all;
}

TEST(ShardMap, ModuloGoesByNumber) {
  const ShardMap map(ShardRule::modulo, 3, Bytes{5, 5, 5, 5, 5});
  EXPECT_EQ(owners(map), (std::vector<int>{0, 1, 2, 0, 1}));
  EXPECT_EQ(map.bytes_of(0), 10);
  EXPECT_EQ(map.bytes_of(2), 5);
  EXPECT_EQ(map.owned_by(1), (std::vector<bool>{false, true, false, false, true}));
}

TEST(ShardMap, BytesGivesRunsWithTheLeastLargestShare) {
  const ShardMap map(ShardRule::bytes, 3, Bytes{7, 2, 5, 10, 8});
  EXPECT_EQ(owners(map), (std::vector<int>{0, 0, 0, 1, 2}));  // 14, 10, 8
}

/// The least largest share of any cut into runs.
std::int64_t best_cut(const Bytes& bytes, std::size_t begin, int ranks) {
  const std::int64_t rest =
      std::accumulate(bytes.begin() + static_cast<std::ptrdiff_t>(begin), bytes.end(), std::int64_t{0});
  if (ranks == 1 || begin == bytes.size()) return rest;
  std::int64_t best = rest, own = 0;
  for (std::size_t end = begin; end < bytes.size(); ++end) {
    own += bytes[end];
    best = std::min(best, std::max(own, best_cut(bytes, end + 1, ranks - 1)));
  }
  return best;
}

TEST(ShardMap, NoCutIsBetterThanTheOneTaken) {
  std::mt19937 engine(4);
  for (int round = 0; round < 60; ++round) {
    Bytes bytes(1 + engine() % 9);
    for (std::int64_t& b : bytes) b = 1 + static_cast<std::int64_t>(engine() % 20);
    const int ranks = 1 + static_cast<int>(engine() % 4);
    const ShardMap map(ShardRule::bytes, ranks, bytes);
    std::int64_t largest = 0;
    for (int r = 0; r < ranks; ++r) largest = std::max(largest, map.bytes_of(r));
    EXPECT_EQ(largest, best_cut(bytes, 0, ranks)) << "round " << round;
    const std::vector<int> all = owners(map);
    EXPECT_TRUE(std::is_sorted(all.begin(), all.end()));
  }
}

TEST(ShardMap, ARankMayOwnNoneAndNobodyOwnsWhatIsNotTrained) {
  const ShardMap few(ShardRule::bytes, 4, Bytes{3, 3});
  EXPECT_EQ(few.bytes_of(3), 0);
  EXPECT_EQ(few.owned_by(3), (std::vector<bool>{false, false}));
  for (const ShardRule rule : {ShardRule::bytes, ShardRule::modulo}) {
    const ShardMap map(rule, 2, Bytes{4, 0, 4});
    EXPECT_EQ(map.owner(1), -1);
  }
}

TEST(ShardMap, ParametersThatComeLaterJoin) {
  ShardMap modulo(ShardRule::modulo, 2, Bytes{1, 1, 1});
  EXPECT_EQ(modulo.add(9), 3U);
  EXPECT_EQ(modulo.owner(3), 1);
  ShardMap bytes(ShardRule::bytes, 2, Bytes{10, 4});
  EXPECT_EQ(bytes.add(3), 2U);
  EXPECT_EQ(bytes.owner(2), 1);
  EXPECT_EQ(bytes.add(5), 3U);
  EXPECT_EQ(bytes.owner(3), 1);
  EXPECT_EQ(bytes.add(1), 4U);
  EXPECT_EQ(bytes.owner(4), 0);
  EXPECT_EQ(bytes.bytes_of(0), 11);
  EXPECT_EQ(bytes.bytes_of(1), 12);
}

}  // namespace
}  // namespace warpmeter::data_parallel
