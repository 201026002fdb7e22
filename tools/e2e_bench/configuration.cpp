#include "tools/e2e_bench/configuration.hpp"

#include <algorithm>
#include <array>
#include <optional>

#include "kernels/attention/registry.hpp"
#include "kernels/layers/available.hpp"
#include "kernels/transformer/graph.hpp"
#include "tools/e2e_bench/presets.hpp"

namespace warpmeter::e2e_bench {

namespace {

using harness::OptionSpec;
using harness::OptionTable;
using harness::UsageError;
using transformer::ModelConfig;
using transformer::Recompute;
using transformer::Structure;

constexpr std::int64_t kMost = std::int64_t{1} << 24;  // of any dimension
constexpr std::array<std::string_view, 3> kModes = {"forward", "forward_backward", "train_step"};
constexpr std::array<std::string_view, 2> kStructures = {"naive", "fused"};
constexpr std::array<std::string_view, 2> kRecomputes = {"none", "block"};
constexpr std::array<std::string_view, 2> kDefinitions = {"torch", "course"};
constexpr std::string_view kCustom = "custom";

/// The dimensions that may be given beside --size.
struct Dimension {
  const char* option;
  std::int64_t ModelConfig::*field;
  const char* help;
  const char* example;
};
constexpr std::array<Dimension, 5> kDimensions = {{
    {"--vocab", &ModelConfig::vocab, "Tokens of the vocabulary, instead of the size's 10000.", "--vocab 50257"},
    {"--d-model", &ModelConfig::d_model, "Width of the model, instead of the size's.", "--d-model 512"},
    {"--d-ff", &ModelConfig::d_ff, "Inner width of the feed-forward part, instead of the size's.", "--d-ff 2048"},
    {"--layers", &ModelConfig::layers, "Blocks, instead of the size's.", "--layers 4"},
    {"--heads", &ModelConfig::heads, "Attention heads, instead of the size's.", "--heads 8"},
}};

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

OptionSpec row_option(std::string name, std::string metavar, std::string fallback, std::string accepted,
                      std::string help, std::string example) {
  OptionSpec spec;
  spec.name = std::move(name);
  spec.metavar = std::move(metavar);
  spec.default_text = std::move(fallback);
  spec.accepted = std::move(accepted);
  spec.help = std::move(help);
  spec.example = std::move(example);
  spec.group = "Configurations";
  spec.row_option = true;
  return spec;
}

const char* definition_name(layers::AdamwDefinition definition) {
  return definition == layers::AdamwDefinition::torch ? "torch" : "course";
}

}  // namespace

std::string Configuration::mode_text() const {
  std::string text;
  const bool on[] = {modes.forward, modes.forward_backward, modes.train_step};
  for (std::size_t i = 0; i < kModes.size(); ++i) {
    if (!on[i]) continue;
    if (!text.empty()) text += ',';
    text += kModes[i];
  }
  return text;
}

const attention::Implementation* Configuration::implementation(Device device) const {
  return attention::find_implementation(device.kind, attention);
}

attention::AttentionProblem Configuration::problem() const {
  attention::AttentionProblem problem;
  problem.batch = batch;
  problem.num_heads = problem.num_kv_heads = model.heads;
  problem.seq_len = problem.kv_len = context;
  problem.head_dim = model.head_dim();
  problem.dtype = precision.compute;
  problem.causal = true;
  return problem;
}

transformer::ModelOptions Configuration::options(Device device) const {
  transformer::ModelOptions options;
  options.precision = precision;
  options.structure = structure;
  options.attention = implementation(device);
  options.recompute = recompute;
  options.batch = batch;
  options.context = context;
  options.adamw.definition = adamw;
  options.learning_rate = static_cast<float>(learning_rate);
  return options;
}

void add_options(OptionTable& table) {
  const std::string counts = "whole numbers from 1: a list or range such as 128,256 or 128:1024:x2";
  const std::string sizes = joined(size_names(), [](auto name) { return name; });
  const std::string precisions = joined(precision_names(), [](auto name) { return name; });
  table.add(
      row_option("--size", "NAMES", "small", sizes + ", or all",
                 "Models by name: the notes' five, and tiny for CPUs. The options below change single dimensions.",
                 "--size small,medium"));
  table.add(row_option("--mode", "NAMES", "forward,forward_backward,train_step",
                       "forward, forward_backward, train_step, with commas between",
                       "Phases to time. The optimizer's state is resident in the last two; train_step adds clipping "
                       "and AdamW.",
                       "--mode train_step"));
  table.add(row_option("--precision", "NAMES", "fp32", precisions + ", or all",
                       "bf16 and fp16 are mixed precision with fp32 masters, fp16 with dynamic loss scaling; bf16_pure "
                       "has bf16 alone; tf32 rounds the operands of products.",
                       "--precision fp32,bf16"));
  table.add(row_option("--structure", "NAMES", "fused", "naive, fused, or all",
                       "naive runs operation by operation, as an eager framework does; fused merges what can be "
                       "merged.",
                       "--structure naive,fused"));
  OptionSpec attention =
      row_option("--attention", "NAMES", "",
                 joined(attention::known_implementation_names(), [](auto name) { return name; }) + ", or all",
                 "Attention implementations.", "--attention naive,flash");
  attention.default_note = "naive with naive, flash with fused";
  table.add(attention);
  table.add(row_option("--recompute", "NAMES", "none", "none, block, or all",
                       "block keeps only each block's input and computes the rest again in the backward.",
                       "--recompute none,block"));
  table.add(row_option("--batch", "LIST", "4", counts, "Sequences of a step.", "--batch 1,4"));
  table.add(row_option("--context", "LIST", "256", counts, "Tokens of a sequence.", "--context 128:1024:x2"));
  for (const Dimension& dimension : kDimensions) {
    OptionSpec spec = row_option(dimension.option, "N", "", "a whole number from 1", dimension.help, dimension.example);
    spec.default_note = "the size's";
    table.add(spec);
  }
  table.add(row_option("--adamw", "NAME", "torch", "torch, course",
                       "Which AdamW: torch decays weights first and adds epsilon to the corrected root; course adds it "
                       "to the uncorrected one and decays last.",
                       "--adamw course"));
  OptionSpec graph = row_option("--graph", "", "true", "", "Record each phase as one CUDA graph.", "--no-graph");
  graph.negation = "--no-graph";
  graph.default_note = "on with fused on CUDA";
  table.add(graph);
  OptionSpec breakdown;
  breakdown.name = "--breakdown";
  breakdown.default_text = "false";
  breakdown.help =
      "A row for each operation instead of the phases' times: time, FLOPs, least bytes, bound and share, those of a "
      "kind "
      "together, and all. Each operation is timed by itself, uncaptured.";
  breakdown.example = "--breakdown --mode forward";
  breakdown.group = "Operations";
  breakdown.excludes = {"--train-steps"};
  OptionSpec types = breakdown;
  types.name = "--dtypes";
  types.help = "A row for everything that is stored and for each operation's result with its type. Nothing is run.";
  types.example = "--dtypes --precision bf16";
  types.excludes = {"--train-steps", "--breakdown"};
  OptionSpec operation =
      row_option("--operation", "NAMES", "", "names of rows of --breakdown or --dtypes, with commas between",
                 "Only these rows of --breakdown or --dtypes.", "--operation \"all matmul\"");
  operation.group = "Operations";
  operation.default_note = "all";
  table.add(breakdown);
  table.add(types);
  table.add(operation);
  OptionSpec steps = row_option(
      "--train-steps", "N", "", "a whole number from 1 to 1000000",
      "Instead of timing phases train so many steps on tokens of a fixed random Markov source, whose entropy is the "
      "least loss that can be reached, and report the loss curve.",
      "--train-steps 300");
  steps.group = "Training";
  table.add(steps);
  OptionSpec rate = row_option("--learning-rate", "X", "", "a number from 0 to 1",
                               "AdamW's learning rate: the highest, between a short warm-up and a cosine's end, with "
                               "--train-steps.",
                               "--learning-rate 0.003");
  rate.group = "Training";
  rate.default_note = "0.01 with --train-steps, else 0.001";
  table.add(rate);
  table.add_presets(presets());
  table.add_examples({
      "e2e_bench --size tiny",
      "e2e_bench --preset notes -o result.json",
      "e2e_bench --size small,medium --precision fp32,bf16 --structure all --wide",
      "e2e_bench --size xl --context 128:1024:x2 --mode forward,train_step --precision bf16",
      "e2e_bench --preset notes --memory-limit 24GiB",
      "e2e_bench --size tiny --precision fp32,bf16,fp16 --train-steps 300",
  });
}

std::vector<Configuration> expand(const OptionTable& table, const harness::Settings& settings) {
  const auto precision_words = precision_names();
  const auto size_words = size_names();
  const auto sizes = table.words("--size", size_words, true);
  const auto precisions = table.words("--precision", precision_words, true);
  const auto structures = table.words("--structure", kStructures, true);
  const auto recomputes = table.words("--recompute", kRecomputes, true);
  const auto modes = table.words("--mode", kModes);
  const auto batches = table.integers("--batch", 1, kMost);
  const auto contexts = table.integers("--context", 1, kMost);
  std::vector<std::string> attentions{""};  // by structure
  if (table.has("--attention")) {
    attentions = table.words("--attention", attention::known_implementation_names(), true);
  }

  Configuration base;
  const auto wanted = [&](std::string_view mode) { return std::find(modes.begin(), modes.end(), mode) != modes.end(); };
  base.modes = {wanted("forward"), wanted("forward_backward"), wanted("train_step")};
  base.adamw =
      table.word("--adamw", kDefinitions) == "torch" ? layers::AdamwDefinition::torch : layers::AdamwDefinition::course;

  if (table.has("--train-steps")) base.train_steps = table.integer("--train-steps", 1, 1'000'000);
  base.learning_rate = base.train_steps != 0 ? 0.01 : 0.001;
  if (table.has("--learning-rate")) base.learning_rate = table.number("--learning-rate", 0, 1);

  std::vector<std::pair<std::string, ModelConfig>> models;
  for (const std::string& name : sizes) {
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
    models.emplace_back(named ? name : std::string(kCustom), model);
  }
  // Two sizes that the given dimensions make the same are one.
  std::vector<std::pair<std::string, ModelConfig>> distinct;
  for (const auto& model : models) {
    if (std::find(distinct.begin(), distinct.end(), model) == distinct.end()) distinct.push_back(model);
  }

  std::vector<Configuration> configurations;
  const auto add = [&](const std::string& precision, const std::string& structure, const std::string& attention,
                       const std::string& recompute, std::int64_t batch, std::int64_t context,
                       const std::pair<std::string, ModelConfig>& model) {
    if (batch * context > (std::int64_t{1} << 31) / model.second.d_model) {
      throw table.error("--batch", std::to_string(batch) + " sequences of " + std::to_string(context) +
                                       " tokens are more than one step can hold");
    }
    Configuration c = base;
    c.size = model.first;
    c.model = model.second;
    c.precision = *transformer::find_precision(precision);
    c.structure = structure == "naive" ? Structure::naive : Structure::fused;
    c.attention = !attention.empty() ? attention : c.structure == Structure::naive ? "naive" : "flash";
    c.recompute = recompute == "none" ? Recompute::none : Recompute::block;
    const bool graph = table.given("--graph") ? table.flag("--graph") : c.structure == Structure::fused;
    c.graph = graph && transformer::Graph::supported(settings.device);
    c.batch = batch;
    c.context = context;
    configurations.push_back(std::move(c));
  };
  for (const std::string& precision : precisions)
    for (const std::string& structure : structures)
      for (const std::string& attention : attentions)
        for (const std::string& recompute : recomputes)
          for (const std::int64_t batch : batches)
            for (const std::int64_t context : contexts)
              for (const auto& model : distinct) add(precision, structure, attention, recompute, batch, context, model);
  return configurations;
}

std::vector<std::string> row_keys() {
  return {"size",  "precision", "structure", "attention", "recompute",  "graph",     "adamw", "mode",
          "batch", "context",   "d_model",   "d_ff",      "num_layers", "num_heads", "vocab"};
}

reports::Object describe(const Configuration& c) {
  reports::Object object;
  object.set("size", c.size);
  object.set("precision", c.precision.name);
  object.set("structure", name(c.structure));
  object.set("attention", c.attention);
  object.set("recompute", name(c.recompute));
  object.set("graph", c.graph);
  object.set("adamw", definition_name(c.adamw));
  object.set("mode", c.mode_text());
  object.set("batch", c.batch);
  object.set("context", c.context);
  object.set("d_model", c.model.d_model);
  object.set("d_ff", c.model.d_ff);
  object.set("num_layers", c.model.layers);
  object.set("num_heads", c.model.heads);
  object.set("vocab", c.model.vocab);
  if (c.train_steps != 0) object.set("train_steps", c.train_steps);
  return object;
}

std::vector<std::pair<std::string, std::string>> option_values(const Configuration& c, Device device) {
  const bool custom = c.size == kCustom;
  std::vector<std::pair<std::string, std::string>> values = {
      {"--size", custom ? "tiny" : c.size},
      {"--precision", std::string(c.precision.name)},
      {"--structure", std::string(name(c.structure))},
      {"--attention", c.attention},
      {"--recompute", std::string(name(c.recompute))},
      {"--adamw", definition_name(c.adamw)},
      {"--mode", c.mode_text()},
      {"--batch", std::to_string(c.batch)},
      {"--context", std::to_string(c.context)},
  };
  for (const Dimension& dimension : kDimensions) {
    values.emplace_back(dimension.option, custom ? std::to_string(c.model.*dimension.field) : "");
  }
  values.emplace_back("--train-steps", c.train_steps != 0 ? std::to_string(c.train_steps) : "");
  values.emplace_back("--graph", !transformer::Graph::supported(device) ? "" : c.graph ? "true" : "false");
  return values;
}

std::optional<std::string> unsupported(const Configuration& c, Device device) {
  const char* where = device.is_cpu() ? "the CPU" : "CUDA";
  if (!layers::available(device.kind)) return std::string("this build has no model operations for ") + where;
  if (device.is_cpu() && c.precision.compute == DType::tf32) return "tf32 is a CUDA compute mode";
  const attention::Implementation* implementation = c.implementation(device);
  if (implementation == nullptr) return "attention " + c.attention + " is not in this build for " + where;
  const attention::AttentionProblem problem = c.problem();
  if (auto reason = implementation->unsupported(problem, attention::Pass::forward)) return reason;
  if (c.modes.training()) return implementation->unsupported(problem, attention::Pass::backward);
  return std::nullopt;
}

}  // namespace warpmeter::e2e_bench
