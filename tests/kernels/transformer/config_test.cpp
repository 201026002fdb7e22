#include "kernels/transformer/config.hpp"

#include <set>

#include <gtest/gtest.h>

#include "kernels/transformer/gradients.hpp"
#include "kernels/transformer/parameter_layout.hpp"

namespace warpmeter::transformer {
namespace {

TEST(Config, ParameterCountsAreExact) {
  const std::pair<const char*, std::int64_t> expected[] = {{"small", 128'625'408},
                                                           {"medium", 423'183'360},
                                                           {"large", 969'411'840},
                                                           {"xl", 1'998'235'200},
                                                           {"7B", 3'406'809'600}};
  for (const auto& [name, count] : expected) {
    const NamedSize* size = find_size(name);
    ASSERT_NE(size, nullptr) << name;
    EXPECT_EQ(size->config.parameters(), count) << name;
    EXPECT_EQ(invalid_reason(size->config), "") << name;
  }
  EXPECT_EQ(find_size("tiny")->config.parameters(), 2 * 640'000 + 2 * (4 * 4096 + 3 * 16'384 + 128) + 64);
  EXPECT_EQ(find_size("huge"), nullptr);
}

TEST(Config, LayoutHoldsEveryParameterOnce) {
  for (const NamedSize& size : named_sizes()) {
    const ParameterLayout layout(size.config);
    EXPECT_EQ(static_cast<std::int64_t>(layout.parameters().size()), size.config.tensors());
    std::int64_t sum = 0, end = 0;
    std::set<std::string> names;
    for (const Parameter& p : layout.parameters()) {
      EXPECT_GE(p.offset, end) << p.name;
      end = p.offset + p.count();
      sum += p.count();
      names.insert(p.name);
    }
    EXPECT_EQ(sum, size.config.parameters());
    EXPECT_EQ(names.size(), layout.parameters().size());
    EXPECT_GE(layout.elements(), end);
    EXPECT_LT(layout.elements() - sum, 10 * size.config.layers * ParameterLayout::kAlignment);
  }
  EXPECT_EQ(find_size("small")->config.tensors(), 111);
  EXPECT_EQ(find_size("7B")->config.tensors(), 291);
}

TEST(Config, GroupsHaveNoGaps) {
  const ModelConfig odd{.vocab = 7, .d_model = 6, .d_ff = 5, .layers = 2, .heads = 3};
  const ParameterLayout layout(odd);
  for (std::int64_t i = 0; i < 2; ++i) {
    const LayerPlaces& places = layout.layer(i);
    EXPECT_EQ(places.wk, places.wq + 36);
    EXPECT_EQ(places.wv, places.wk + 36);
    EXPECT_EQ(places.w3, places.w1 + 30);
    for (const std::int64_t place : {places.norm1, places.wq, places.wo, places.norm2, places.w1, places.w2}) {
      EXPECT_EQ(place % ParameterLayout::kAlignment, 0);
    }
  }
}

TEST(GradientGroups, ParametersFollowOneAnotherButForGapsAndGroups) {
  CachingAllocator allocator(Device::cpu());
  const Context context{{Device::cpu(), nullptr}, &allocator};
  const std::pair<ModelConfig, std::size_t> cases[] = {
      // Aligned dimensions leave no gaps: one run a group.
      {{.vocab = 512, .d_model = 256, .d_ff = 512, .layers = 3, .heads = 4}, 5},
      // Odd ones do, but within Q, K, V and within W1, W3: six of nine a layer, and three outside.
      {{.vocab = 7, .d_model = 6, .d_ff = 5, .layers = 2, .heads = 3}, 2 * 6 + 3}};
  for (const auto& [config, runs] : cases) {
    const ParameterLayout layout(config);
    Gradients gradients(layout);
    std::size_t begins = 0;
    for (std::size_t i = 0; i < layout.parameters().size(); ++i) begins += gradients.follows(i) ? 0 : 1;
    EXPECT_EQ(begins, runs);
    Memory memory(context);
    gradients.take(memory, gradients.layer_group(1), DType::fp32);
    const std::int64_t place = layout.layer(1).w2;
    EXPECT_EQ(gradients.at(place), gradients.array_of(place).at(place - layout.layer(1).norm1));
    EXPECT_FALSE(gradients.array_of(layout.layer(0).w2).defined());
    EXPECT_FALSE(gradients.array_of(layout.head()).defined());
    gradients.take(memory, gradients.head_group(), DType::fp32);
    EXPECT_TRUE(gradients.array_of(layout.final_norm()).defined());
    EXPECT_GT(memory.current()[MemoryKind::gradients], 0u);
    gradients.give_back();
    EXPECT_EQ(memory.current().total(), 0u);
  }
}

TEST(Config, ForwardFlopsCountProductsAndAttention) {
  const ModelConfig c{.vocab = 10, .d_model = 4, .d_ff = 8, .layers = 3, .heads = 2};
  // 2 * 6 tokens * (3 * (4 * 16 + 3 * 32) + 40) and 3 layers of 4 * 2 sequences * 6 pairs * 4.
  EXPECT_EQ(c.forward_flops(2, 3), 2.0 * 6 * (3 * 160 + 40) + 3.0 * 4 * 2 * 6 * 4);
  EXPECT_EQ(c.step_flops(2, 3), 3 * c.forward_flops(2, 3));
}

TEST(Config, ImpossibleDimensionsAreRefused) {
  ModelConfig c;
  c.heads = 3;
  EXPECT_EQ(invalid_reason(c), "3 heads do not divide d_model 64");
  c = {.d_model = 12, .heads = 4};
  EXPECT_NE(invalid_reason(c).find("head_dim 3"), std::string::npos);
  c = {.d_model = 1024, .heads = 2};
  EXPECT_NE(invalid_reason(c).find("at most 256"), std::string::npos);
  c = {.vocab = 0};
  EXPECT_NE(invalid_reason(c).find("vocab"), std::string::npos);
  c = {.layers = 0};
  EXPECT_NE(invalid_reason(c).find("layers"), std::string::npos);
}

}  // namespace
}  // namespace warpmeter::transformer
