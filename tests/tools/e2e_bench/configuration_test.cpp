#include "tools/e2e_bench/configuration.hpp"

#include <gtest/gtest.h>

#include "tools/e2e_bench/data_parallel_configuration.hpp"
#include "tools/e2e_bench/presets.hpp"

namespace warpmeter::e2e_bench {
namespace {

using harness::OptionTable;

OptionTable table_of(std::vector<const char*> arguments) {
  OptionTable table("e2e_bench", "A tool.");
  harness::add_shared_options(table, {});
  add_options(table);
  arguments.insert(arguments.begin(), "e2e_bench");
  table.parse(static_cast<int>(arguments.size()), arguments.data());
  return table;
}

std::vector<Configuration> expanded(const std::vector<const char*>& arguments) {
  harness::Settings settings;
  return expand(table_of(arguments), settings);
}

std::string usage_error(const std::vector<const char*>& arguments) {
  try {
    (void)expanded(arguments);
  } catch (const harness::UsageError& e) {
    return e.what();
  }
  return "";
}

TEST(Configurations, DefaultsAreTheNotes) {
  const auto all = expanded({});
  ASSERT_EQ(all.size(), 1u);
  const Configuration& c = all[0];
  EXPECT_EQ(c.size, "small");
  EXPECT_EQ(c.model.parameters(), 128'625'408);
  EXPECT_EQ(c.batch, 4);
  EXPECT_EQ(c.context, 256);
  EXPECT_EQ(c.precision.name, "fp32");
  EXPECT_EQ(c.structure, transformer::Structure::fused);
  EXPECT_EQ(c.attention, "flash");
  EXPECT_EQ(c.mode_text(), "forward,forward_backward,train_step");
  EXPECT_FALSE(c.graph) << "there are none on the CPU";
}

TEST(Configurations, SizesRunInnermostAndAttentionGoesByStructure) {
  const auto all =
      expanded({"--size", "tiny,small", "--structure", "all", "--context", "8,16", "--precision", "fp32,bf16"});
  ASSERT_EQ(all.size(), 16u);
  EXPECT_EQ(all[0].size, "tiny");
  EXPECT_EQ(all[1].size, "small");
  EXPECT_EQ(all[1].context, 8);
  EXPECT_EQ(all[2].context, 16);
  EXPECT_EQ(all[0].attention, "naive");
  EXPECT_EQ(all[4].attention, "flash");
  EXPECT_EQ(all[4].structure, transformer::Structure::fused);
  EXPECT_EQ(all[8].precision.name, "bf16");
}

TEST(Configurations, AnyDimensionMayBeGiven) {
  const auto all =
      expanded({"--size", "tiny", "--d-model", "96", "--heads", "6", "--layers", "1", "--vocab", "50", "--d-ff", "10"});
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].size, "custom");
  EXPECT_EQ(all[0].model, (transformer::ModelConfig{.vocab = 50, .d_model = 96, .d_ff = 10, .layers = 1, .heads = 6}));
  EXPECT_EQ(expanded({"--size", "all", "--vocab", "50"}).size(), 6u);
  const std::vector<const char*> every = {"--size",   "tiny,small", "--d-model", "96", "--heads", "6",
                                          "--layers", "1",          "--vocab",   "50", "--d-ff",  "10"};
  EXPECT_EQ(expanded(every).size(), 1u) << "nothing is left of the sizes";
}

TEST(Configurations, OptionValuesRepeatTheRow) {
  for (const std::vector<const char*>& arguments :
       {std::vector<const char*>{"--size", "all", "--precision", "all", "--structure", "all", "--recompute", "all"},
        std::vector<const char*>{"--size", "small", "--d-ff", "100", "--mode", "forward", "--adamw", "course"},
        std::vector<const char*>{"--size", "tiny", "--train-steps", "7"}}) {
    for (const Configuration& c : expanded(arguments)) {
      std::vector<std::string> texts;
      for (const auto& [option, value] : option_values(c, Device::cpu())) {
        if (value.empty()) continue;
        texts.push_back(option);
        texts.push_back(value);
      }
      std::vector<const char*> again;
      for (const std::string& text : texts) again.push_back(text.c_str());
      const auto repeated = expanded(again);
      ASSERT_EQ(repeated.size(), 1u);
      EXPECT_EQ(describe(repeated[0]), describe(c));
    }
  }
}

TEST(Configurations, RowKeysAreTheDescribedFields) {
  std::vector<std::string> names;
  const reports::Object described = describe(expanded({})[0]);
  for (const auto& [field, value] : described.fields()) names.push_back(field);
  EXPECT_EQ(names, row_keys());
}

TEST(Configurations, ImpossibleModelsNameTheOption) {
  EXPECT_NE(usage_error({"--size", "tiny", "--heads", "3"}).find("--heads '3': 3 heads do not divide d_model 64"),
            std::string::npos);
  EXPECT_NE(usage_error({"--size", "tiny", "--d-model", "12"}).find("head_dim 3, and RoPE turns pairs"),
            std::string::npos);
  EXPECT_NE(usage_error({"--size", "tiny", "--d-model", "2048"}).find("at most 256"), std::string::npos);
  EXPECT_NE(usage_error({"--vocab", "0"}).find("--vocab '0'"), std::string::npos);
  EXPECT_NE(usage_error({"--context", "0"}).find("--context '0'"), std::string::npos);
  EXPECT_NE(usage_error({"--batch", "16777216", "--context", "16777216"}).find("--batch"), std::string::npos);
  EXPECT_NE(usage_error({"--precision", "bf17"}).find("bf16"), std::string::npos);
}

TEST(Configurations, UnsupportedSaysWhy) {
  const auto reason = [](const std::vector<const char*>& arguments) {
    return unsupported(expanded(arguments)[0], Device::cpu()).value_or("");
  };
  EXPECT_EQ(reason({}), "");
  EXPECT_EQ(reason({"--precision", "tf32"}), "tf32 is a CUDA compute mode");
  EXPECT_EQ(reason({"--attention", "flash_sm90"}), "attention flash_sm90 is not in this build for the CPU");
}

TEST(DataParallelConfigurations, ProductsBesideCallsOfFewBlocksArePlannedForTheRest) {
  using data_parallel::Strategy;
  DataParallelConfiguration c;
  c.strategy = Strategy::bucketed;
  EXPECT_EQ(c.spare_multiprocessors(), 0);
  c.max_blocks = 8;
  EXPECT_EQ(c.spare_multiprocessors(), 8);
  c.strategy = Strategy::overlap;
  EXPECT_EQ(c.spare_multiprocessors(), 8);
  c.max_blocks = 128;  // more than calls take: bounds nothing
  EXPECT_EQ(c.spare_multiprocessors(), 0);
  c.max_blocks = 8;
  c.kind = DataParallelConfiguration::Kind::verified;
  EXPECT_EQ(c.spare_multiprocessors(), 0);
  c.kind = DataParallelConfiguration::Kind::timed;
  c.strategy = Strategy::flat;  // calls come after the backward
  EXPECT_EQ(c.spare_multiprocessors(), 0);
}

TEST(Presets, Expand) {
  for (const harness::Preset& preset : presets()) {
    OptionTable table("e2e_bench", "A tool.");
    harness::add_shared_options(table, {});
    add_options(table);
    const char* const arguments[] = {"e2e_bench", "--preset", preset.name.c_str()};
    table.parse(3, arguments);
    EXPECT_FALSE(expand(table, harness::Settings{}).empty()) << preset.name;
  }
}

}  // namespace
}  // namespace warpmeter::e2e_bench
