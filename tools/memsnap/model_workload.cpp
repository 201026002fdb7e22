#include <algorithm>
#include <optional>

#include <fmt/core.h>

#include "kernels/runtime/annotate.hpp"
#include "kernels/transformer/model.hpp"
#include "tools/harness/usage_error.hpp"
#include "tools/memsnap/workload.hpp"
#include "tools/model_options/options.hpp"

namespace warpmeter::memsnap {
namespace {

using model_options::ModelSetup;
using transformer::Model;

enum class Mode : std::uint8_t { forward, forward_backward, train_step };

/// One step of a model as e2e_bench times it, but not as a CUDA graph, whose launches allocate nothing. The model
/// itself names its phases, layers, operations and categories.
class ModelWorkload final : public Workload {
 public:
  ModelWorkload(ModelSetup setup, Mode mode, const WorkloadSettings& settings)
      : setup_(std::move(setup)), mode_(mode), settings_(settings) {}

  std::string describe() const override {
    const transformer::ModelConfig& c = setup_.model;
    std::string size = setup_.size;
    if (size == model_options::kCustomSize) {
      size = fmt::format("{} layers of d_model {}, d_ff {}, {} heads, vocab {}", c.layers, c.d_model, c.d_ff, c.heads,
                         c.vocab);
    }
    return fmt::format("{} {} {} b{} c{} {} {}{}", size, model_options::kModes[static_cast<std::size_t>(mode_)],
                       setup_.precision.name, setup_.batch, setup_.context, name(setup_.structure), setup_.attention,
                       setup_.recompute == transformer::Recompute::block ? ", recomputing blocks" : "");
  }

  std::string unsupported() const override {
    return model_options::unsupported(setup_, settings_.device, training()).value_or("");
  }

  std::size_t predicted_peak() const override {
    if (predicted_ == 0) {
      const Context context{{settings_.device, nullptr}, nullptr};
      const auto memory = predict_memory(context, setup_.model, setup_.options(settings_.device));
      predicted_ = (mode_ == Mode::forward            ? memory.forward
                    : mode_ == Mode::forward_backward ? memory.forward_backward
                                                      : memory.train_step)
                       .total();
    }
    return predicted_;
  }

  void prepare(const Context& context) override {
    const FrameScope frame("model");
    const CategoryScope category("workspace");  // of what the model gives no category: libraries' and initial values
    model_.emplace(context, setup_.model, setup_.options(settings_.device));
    model_->initialize(settings_.seed);
    set_random_batch(*model_, setup_, settings_.seed);
    if (training()) model_->prepare_training();
  }

  void step(const Context& /*context*/) override {
    const CategoryScope category("workspace");
    if (!training()) {
      model_->forward();
      return;
    }
    model_->forward_backward();
    if (mode_ == Mode::train_step) model_->optimizer_step();
  }

 private:
  [[nodiscard]] bool training() const { return mode_ != Mode::forward; }

  ModelSetup setup_;
  Mode mode_;
  WorkloadSettings settings_;
  mutable std::size_t predicted_ = 0;  ///< asked for twice
  std::optional<Model> model_;
};

/// The same option for one value.
harness::OptionSpec single(harness::OptionSpec spec) {
  if (const std::size_t all = spec.accepted.find(", or all"); all != std::string::npos) spec.accepted.erase(all);
  if (spec.metavar == "LIST") {
    spec.metavar = "N";
    spec.accepted = "a whole number from 1";
  } else if (spec.metavar == "NAMES") {
    spec.metavar = "NAME";
  }
  spec.example = spec.example.substr(0, spec.example.find_first_of(",:"));
  return spec;
}

void add_model_options(harness::OptionTable& table) {
  for (harness::OptionSpec& of_sweeps : model_options::model_option_specs()) {
    harness::OptionSpec spec = single(std::move(of_sweeps));
    spec.group = "Model";
    spec.row_option = false;
    if (spec.name == "--size") {
      spec.help = "A model by name: the notes' five, and tiny for CPUs. The options below change single dimensions.";
    }
    if (spec.name == "--attention") {
      spec.help =
          "The model's attention implementation. Without a value: record an attention problem of attn_bench instead "
          "of a model; memsnap record --attention --help lists its options.";
      spec.example = "--attention naive";
    }
    const bool size = spec.name == "--size";
    table.add(std::move(spec));
    if (!size) continue;
    table.add({.name = "--mode",
               .metavar = "NAME",
               .default_text = "train_step",
               .accepted = "forward, forward_backward, train_step",
               .help = "What a step is. The optimizer's state is resident in the last two; train_step adds clipping "
                       "and AdamW.",
               .example = "--mode forward",
               .group = "Model"});
  }
  table.add_examples({
      "memsnap record --size small --mode train_step --precision bf16 -o small.pickle",
      "memsnap record --size large --context 256 --mode forward -o large.pickle",
      "memsnap record --attention --impl naive --seq-len 4096 -o naive.pickle",
  });
}

std::unique_ptr<Workload> make_model_workload(const harness::OptionTable& table, const WorkloadSettings& settings) {
  const std::string word = table.word("--mode", model_options::kModes);
  const auto mode = std::find(model_options::kModes.begin(), model_options::kModes.end(), word);
  std::vector<ModelSetup> setups = model_options::expand_models(table);
  if (setups.size() != 1) {
    throw harness::UsageError(
        fmt::format("the options name {} models; accepted: one value each, since one is recorded", setups.size()));
  }
  return std::make_unique<ModelWorkload>(std::move(setups.front()),
                                         static_cast<Mode>(mode - model_options::kModes.begin()), settings);
}

}  // namespace

const WorkloadKind kModelWorkload = {add_model_options, make_model_workload};

}  // namespace warpmeter::memsnap
