#include "tools/e2e_bench/configuration.hpp"

#include <algorithm>
#include <optional>

#include "kernels/transformer/graph.hpp"
#include "tools/e2e_bench/presets.hpp"
#include "tools/e2e_bench/toy_amp.hpp"
#include "tools/harness/row_option.hpp"
#include "tools/model_options/options.hpp"

namespace warpmeter::e2e_bench {

namespace {

using harness::OptionSpec;
using harness::OptionTable;
using harness::row_option;
using model_options::definition_name;
using model_options::Dimension;
using model_options::kDimensions;
using model_options::kModes;
using model_options::ModelSetup;
using transformer::Structure;

}  // namespace

transformer::ModelOptions Configuration::options(Device device) const {
  transformer::ModelOptions options = ModelSetup::options(device);
  options.side_stream = side_stream;
  options.fused_products = fused_products;
  return options;
}

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

void add_options(OptionTable& table) {
  for (OptionSpec& spec : model_options::model_option_specs()) {
    const bool size = spec.name == "--size";
    if (size) spec.accepted += "; toy_mlp with --data-parallel, toy_amp with --dtypes";
    table.add(std::move(spec));
    if (!size) continue;
    table.add(row_option(
        "--mode", "NAMES", "forward,forward_backward,train_step",
        "forward, forward_backward, train_step, with commas between",
        "Phases to time. The optimizer's state is resident in the last two; train_step adds clipping and AdamW.",
        "--mode train_step"));
  }
  OptionSpec graph = row_option("--graph", "", "true", "", "Record each phase as one CUDA graph.", "--no-graph");
  graph.negation = "--no-graph";
  graph.default_note = "on with fused on CUDA";
  table.add(graph);
  OptionSpec side =
      row_option("--side-stream", "", "true", "",
                 "Weight gradients in a second stream, beside the chain of input gradients.", "--no-side-stream");
  side.negation = "--no-side-stream";
  side.default_note = "on with fused on CUDA";
  table.add(side);
  OptionSpec products =
      row_option("--fused-products", "", "true", "",
                 "RoPE and SwiGLU within the products before them (16 bits on Hopper).", "--no-fused-products");
  products.negation = "--no-fused-products";
  products.default_note = "on with fused on CUDA";
  table.add(products);
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
  Configuration base;
  const auto modes = table.words("--mode", kModes);
  const auto wanted = [&](std::string_view mode) { return std::find(modes.begin(), modes.end(), mode) != modes.end(); };
  base.modes = {wanted("forward"), wanted("forward_backward"), wanted("train_step")};
  if (table.has("--train-steps")) base.train_steps = table.integer("--train-steps", 1, 1'000'000);
  double learning_rate = base.train_steps != 0 ? 0.01 : 0.001;
  if (table.has("--learning-rate")) learning_rate = table.number("--learning-rate", 0, 1);

  constexpr std::string_view kMore[] = {kToyAmp};
  std::vector<Configuration> configurations;
  for (ModelSetup& setup : model_options::expand_models(table, kMore)) {
    Configuration& c = configurations.emplace_back(base);
    static_cast<ModelSetup&>(c) = std::move(setup);
    if (c.size == kToyAmp && !table.flag("--dtypes")) throw table.error("--size", "nothing runs the toy");
    c.learning_rate = learning_rate;
    const bool graph = table.given("--graph") ? table.flag("--graph") : c.structure == Structure::fused;
    c.graph = graph && transformer::Graph::supported(settings.device);
    c.fused_products = table.flag("--fused-products") && c.structure == Structure::fused && settings.device.is_cuda();
    c.side_stream = table.flag("--side-stream") && c.structure == Structure::fused && settings.device.is_cuda();
  }
  return configurations;
}

std::vector<std::string> row_keys() {
  return {"size",        "precision",      "structure",  "attention", "recompute", "graph",
          "side_stream", "fused_products", "adamw",      "mode",      "batch",     "context",
          "d_model",     "d_ff",           "num_layers", "num_heads", "vocab"};
}

reports::Object describe(const Configuration& c) {
  reports::Object object;
  object.set("size", c.size);
  object.set("precision", c.precision.name);
  object.set("structure", name(c.structure));
  object.set("attention", c.attention);
  object.set("recompute", name(c.recompute));
  object.set("graph", c.graph);
  object.set("side_stream", c.side_stream);
  object.set("fused_products", c.fused_products);
  object.set("adamw", definition_name(c.adamw));
  object.set("mode", c.mode_text());
  object.set("batch", c.batch);
  object.set("context", c.context);
  const bool toy = c.size == kToyAmp;  // which has none of these
  const auto dimension = [&](std::int64_t value) { return toy ? reports::Value() : reports::Value(value); };
  object.set("d_model", dimension(c.model.d_model));
  object.set("d_ff", dimension(c.model.d_ff));
  object.set("num_layers", dimension(c.model.layers));
  object.set("num_heads", dimension(c.model.heads));
  object.set("vocab", dimension(c.model.vocab));
  if (c.train_steps != 0) object.set("train_steps", c.train_steps);
  return object;
}

std::vector<std::pair<std::string, std::string>> option_values(const Configuration& c, Device device) {
  const bool custom = c.size == model_options::kCustomSize;
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
  values.emplace_back("--side-stream", device.is_cpu() ? "" : c.side_stream ? "true" : "false");
  values.emplace_back("--fused-products", device.is_cpu() ? "" : c.fused_products ? "true" : "false");
  values.emplace_back("--graph", !transformer::Graph::supported(device) ? "" : c.graph ? "true" : "false");
  return values;
}

std::optional<std::string> unsupported(const Configuration& c, Device device) {
  if (c.size == kToyAmp) return std::nullopt;  // nothing runs it
  return model_options::unsupported(c, device, c.modes.training());
}

}  // namespace warpmeter::e2e_bench
