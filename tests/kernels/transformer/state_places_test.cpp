#include "kernels/transformer/state_places.hpp"

#include <gtest/gtest.h>

namespace warpmeter::transformer {
namespace {

// embedding 5 x 8, [norm, wq wk wv, wo, norm, w1 w3, w2], final norm, head
constexpr ModelConfig kConfig{.vocab = 5, .d_model = 8, .d_ff = 12, .layers = 1, .heads = 2};

TEST(StatePlaces, AreTheWeightsPlacesWhereAllIsKept) {
  const ParameterLayout layout(kConfig);
  const StatePlaces places(layout);
  for (std::size_t i = 0; i < layout.parameters().size(); ++i) EXPECT_EQ(places.at(i), layout.parameters()[i].offset);
  EXPECT_EQ(places.elements(), layout.elements());
}

TEST(StatePlaces, PackWhatIsKeptWithJoinedParametersTogether) {
  const ParameterLayout layout(kConfig);
  std::vector<bool> kept(layout.parameters().size(), false);
  for (const std::size_t i : {2, 3, 4, 8}) kept[i] = true;  // wq, wk, wv; w3 without w1, to which it is joined
  const StatePlaces places(layout, kept);
  EXPECT_EQ(places.at(2), 0);
  EXPECT_EQ(places.at(3), 64);
  EXPECT_EQ(places.at(4), 128);
  EXPECT_EQ(places.at(8), 256);
  for (const std::size_t i : {0, 1, 5, 6, 7, 9, 10, 11}) EXPECT_EQ(places.at(i), -1) << i;
  EXPECT_EQ(places.elements(), 256 + 96);
}

TEST(StatePlaces, OfNothingStillMakeAnArray) {
  const ParameterLayout layout(kConfig);
  EXPECT_EQ(StatePlaces(layout, std::vector<bool>(layout.parameters().size())).elements(), 1);
}

}  // namespace
}  // namespace warpmeter::transformer
