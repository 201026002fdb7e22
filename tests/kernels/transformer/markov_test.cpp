#include "kernels/transformer/markov.hpp"

#include <cmath>
#include <map>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace warpmeter::transformer {
namespace {

TEST(Markov, EntropyIsThatOfItsTokens) {
  MarkovSource source(1000, 7, 16, 3);
  const std::int64_t context = 200'000;
  std::vector<std::int32_t> tokens(context), targets(context);
  source.next_batch(1, context, tokens, targets);
  // What counting pairs finds, little biased with so many of each.
  std::map<std::int32_t, double> singles;
  std::map<std::pair<std::int32_t, std::int32_t>, double> pairs;
  for (std::int64_t i = 0; i < context; ++i) {
    singles[tokens[static_cast<std::size_t>(i)]] += 1;
    pairs[{tokens[static_cast<std::size_t>(i)], targets[static_cast<std::size_t>(i)]}] += 1;
  }
  double entropy = 0;
  for (const auto& [pair, count] : pairs) entropy -= count / context * std::log(count / singles[pair.first]);
  EXPECT_NEAR(source.entropy(), entropy, 0.005);
  EXPECT_EQ(singles.size(), 16u);
  EXPECT_LE(pairs.size(), 48u);
}

TEST(Markov, TargetsFollowAndSeedsRepeat) {
  MarkovSource a(50, 1), b(50, 1), other(50, 2);
  std::vector<std::int32_t> tokens(2 * 9), targets(2 * 9), again(2 * 9), ignored(2 * 9);
  a.next_batch(2, 9, tokens, targets);
  b.next_batch(2, 9, again, ignored);
  EXPECT_EQ(tokens, again);
  for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
    if (i % 9 == 8) continue;  // another sequence
    EXPECT_EQ(targets[i], tokens[i + 1]);
  }
  for (const std::int32_t token : tokens) EXPECT_TRUE(token >= 0 && token < 50);
  other.next_batch(2, 9, again, ignored);
  EXPECT_NE(tokens, again);
}

TEST(Markov, OneTokenHasNothingToLearn) {
  MarkovSource source(1, 3);
  EXPECT_EQ(source.entropy(), 0);
}

}  // namespace
}  // namespace warpmeter::transformer
