#include "tools/model_options/options.hpp"

#include <algorithm>
#include <utility>

#include "kernels/attention/registry.hpp"
#include "tools/harness/row_option.hpp"

namespace warpmeter::model_options {

using harness::OptionSpec;
using harness::OptionTable;
using harness::row_option;
using harness::UsageError;
using transformer::ModelConfig;
using transformer::Recompute;
using transformer::Structure;

const std::array<Dimension, 5> kDimensions = {{
    {"--vocab", &ModelConfig::vocab, "Tokens of the vocabulary, instead of the size's 10000.", "--vocab 50257"},
    {"--d-model", &ModelConfig::d_model, "Width of the model, instead of the size's.", "--d-model 512"},
    {"--d-ff", &ModelConfig::d_ff, "Inner width of the feed-forward part, instead of the size's.", "--d-ff 2048"},
    {"--layers", &ModelConfig::layers, "Blocks, instead of the size's.", "--layers 4"},
    {"--heads", &ModelConfig::heads, "Attention heads, instead of the size's.", "--heads 8"},
}};

namespace {

constexpr std::int64_t kMost = std::int64_t{1} << 24;  // of any dimension
constexpr std::array<std::string_view, 2> kStructures = {"naive", "fused"};
constexpr std::array<std::string_view, 2> kRecomputes = {"none", "block"};
constexpr std::array<std::string_view, 2> kDefinitions = {"torch", "course"};

template <class Range, class Name>
std::string joined(const Range& range, Name&& name) {
  std::string text;
  for (const auto& entry : range) {
    if (!text.empty()) text += ',';
    text += name(entry);
  }
  return text;
}

template <class Range, class Name>
std::vector<std::string_view> words(const Range& range, Name&& name) {
  std::vector<std::string_view> result;
  for (const auto& entry : range) result.push_back(name(entry));
  return result;
}

std::vector<std::string_view> size_names() {
  return words(transformer::named_sizes(), [](const auto& size) { return size.name; });
}
std::vector<std::string_view> precision_names() {
  return words(transformer::precision_policies(), [](const auto& policy) { return policy.name; });
}

}  // namespace

const char* definition_name(layers::AdamwDefinition definition) {
  return definition == layers::AdamwDefinition::torch ? "torch" : "course";
}

std::vector<OptionSpec> model_option_specs() {
  const std::string counts = "whole numbers from 1: a list or range such as 128,256 or 128:1024:x2";
  const std::string sizes = joined(size_names(), [](auto name) { return name; });
  const std::string precisions = joined(precision_names(), [](auto name) { return name; });
  std::vector<OptionSpec> specs;
  specs.push_back(
      row_option("--size", "NAMES", "small", sizes + ", or all",
                 "Models by name: the notes' five, and tiny for CPUs. The options below change single dimensions.",
                 "--size small,medium"));
  specs.push_back(row_option("--precision", "NAMES", "fp32", precisions + ", or all",
                             "bf16 and fp16 are mixed precision with fp32 masters, fp16 with dynamic loss scaling; "
                             "bf16_pure has bf16 alone; tf32 rounds the operands of products.",
                             "--precision fp32,bf16"));
  specs.push_back(row_option("--structure", "NAMES", "fused", "naive, fused, or all",
                             "naive runs operation by operation, as an eager framework does; fused merges what can be "
                             "merged.",
                             "--structure naive,fused"));
  OptionSpec attention =
      row_option("--attention", "NAMES", "",
                 joined(attention::known_implementation_names(), [](auto name) { return name; }) + ", or all",
                 "Attention implementations.", "--attention naive,flash");
  attention.default_note = "naive with naive, flash with fused";
  specs.push_back(std::move(attention));
  specs.push_back(row_option("--recompute", "NAMES", "none", "none, block, or all",
                             "block keeps only each block's input and computes the rest again in the backward.",
                             "--recompute none,block"));
  specs.push_back(row_option("--batch", "LIST", "4", counts, "Sequences of a step.", "--batch 1,4"));
  specs.push_back(row_option("--context", "LIST", "256", counts, "Tokens of a sequence.", "--context 128:1024:x2"));
  for (const Dimension& dimension : kDimensions) {
    OptionSpec spec = row_option(dimension.option, "N", "", "a whole number from 1", dimension.help, dimension.example);
    spec.default_note = "the size's";
    specs.push_back(std::move(spec));
  }
  specs.push_back(row_option("--adamw", "NAME", "torch", "torch, course",
                             "Which AdamW: torch decays weights first and adds epsilon to the corrected root; course "
                             "adds it to the uncorrected one and decays last.",
                             "--adamw course"));
  return specs;
}

std::vector<ModelSetup> expand_models(const OptionTable& table, std::span<const std::string_view> more_sizes) {
  const auto precision_words = precision_names();
  auto size_words = size_names();
  const bool every = table.text("--size") == "all";  // of the transformers
  if (!every) size_words.insert(size_words.end(), more_sizes.begin(), more_sizes.end());
  const auto sizes = table.words("--size", size_words, true);
  const auto precisions = table.words("--precision", precision_words, true);
  const auto structures = table.words("--structure", kStructures, true);
  const auto recomputes = table.words("--recompute", kRecomputes, true);
  const auto batches = table.integers("--batch", 1, kMost);
  const auto contexts = table.integers("--context", 1, kMost);
  std::vector<std::string> attentions{""};  // by structure
  if (table.has("--attention")) {
    attentions = table.words("--attention", attention::known_implementation_names(), true);
  }
  const auto adamw =
      table.word("--adamw", kDefinitions) == "torch" ? layers::AdamwDefinition::torch : layers::AdamwDefinition::course;

  std::vector<std::pair<std::string, ModelConfig>> models;
  std::vector<std::string> others;
  for (const std::string& name : sizes) {
    if (transformer::find_size(name) == nullptr) {
      others.push_back(name);
      continue;
    }
    ModelConfig model = transformer::find_size(name)->config;
    for (const Dimension& dimension : kDimensions) {
      if (table.has(dimension.option)) model.*dimension.field = table.integer(dimension.option, 1, kMost);
    }
    if (const std::string reason = invalid_reason(model); !reason.empty()) {
      // The option to blame, where one was given.
      for (const char* option : {"--heads", "--d-model"}) {
        if (table.has(option)) throw table.error(option, reason);
      }
      throw UsageError("--size " + name + ": " + reason);
    }
    const bool named = model == transformer::find_size(name)->config;
    models.emplace_back(named ? name : std::string(kCustomSize), model);
  }
  // Two sizes that the given dimensions make the same are one.
  std::vector<std::pair<std::string, ModelConfig>> distinct;
  for (const auto& model : models) {
    if (std::find(distinct.begin(), distinct.end(), model) == distinct.end()) distinct.push_back(model);
  }

  std::vector<ModelSetup> setups;
  const auto add = [&](const std::string& precision, const std::string& structure, const std::string& attention,
                       const std::string& recompute, std::int64_t batch, std::int64_t context,
                       const std::pair<std::string, ModelConfig>& model) {
    if (batch * context > (std::int64_t{1} << 31) / model.second.d_model) {
      throw table.error("--batch", std::to_string(batch) + " sequences of " + std::to_string(context) +
                                       " tokens are more than one step can hold");
    }
    ModelSetup setup;
    setup.size = model.first;
    setup.model = model.second;
    setup.precision = *transformer::find_precision(precision);
    setup.structure = structure == "naive" ? Structure::naive : Structure::fused;
    setup.attention = !attention.empty() ? attention : setup.structure == Structure::naive ? "naive" : "flash";
    setup.recompute = recompute == "none" ? Recompute::none : Recompute::block;
    setup.adamw = adamw;
    setup.batch = batch;
    setup.context = context;
    setups.push_back(std::move(setup));
  };
  for (const std::string& precision : precisions)
    for (const std::string& structure : structures)
      for (const std::string& attention : attentions)
        for (const std::string& recompute : recomputes)
          for (const std::int64_t batch : batches)
            for (const std::int64_t context : contexts)
              for (const auto& model : distinct) add(precision, structure, attention, recompute, batch, context, model);
  for (const std::string& name : others) {
    for (const std::string& precision : precisions) {
      for (const std::int64_t batch : batches) {
        ModelSetup setup;
        setup.size = name;
        setup.precision = *transformer::find_precision(precision);
        setup.adamw = adamw;
        setup.batch = batch;
        setups.push_back(std::move(setup));
      }
    }
  }
  return setups;
}

}  // namespace warpmeter::model_options
