#include "tools/e2e_bench/data_parallel_configuration.hpp"

#include <algorithm>
#include <array>
#include <sstream>

#include <fmt/core.h>

#include "kernels/data_parallel/toy_mlp.hpp"
#include "tools/harness/grammar.hpp"
#include "tools/harness/launch/options.hpp"
#include "tools/harness/row_option.hpp"
#include "tools/model_options/options.hpp"

namespace warpmeter::e2e_bench {

namespace {

using collectives::Backend;
using data_parallel::Optimizer;
using data_parallel::ShardRule;
using data_parallel::Strategy;
using harness::OptionSpec;
using harness::OptionTable;
using Kind = DataParallelConfiguration::Kind;

constexpr std::array<std::string_view, 4> kStrategies = {"naive", "flat", "overlap", "bucketed"};
constexpr std::array<std::string_view, 2> kShardRules = {"bytes", "modulo"};
constexpr std::array<std::string_view, 2> kOptimizers = {"adamw", "sgd"};
constexpr std::uint64_t kDefaultBucket = std::uint64_t{25} << 20;  // as PyTorch's
constexpr std::string_view kFit = "fit";
constexpr double kToyLearningRate = 1e-4;  // the notes'

OptionSpec option(std::string name, std::string metavar, std::string fallback, std::string accepted, std::string help,
                  std::string example) {
  OptionSpec spec = harness::row_option(std::move(name), std::move(metavar), std::move(fallback), std::move(accepted),
                                        std::move(help), std::move(example));
  spec.group = "Data parallel";
  return spec;
}

OptionSpec flag(std::string name, std::string negation, std::string help, std::string example) {
  OptionSpec spec = option(name, "BOOLS", "false", name + ", " + negation + " or " + name + "=both", std::move(help),
                           std::move(example));
  spec.negation = std::move(negation);
  return spec;
}

Strategy strategy_of(std::string_view word) {
  return static_cast<Strategy>(std::find(kStrategies.begin(), kStrategies.end(), word) - kStrategies.begin());
}

const char* optimizer_name(Optimizer optimizer) {
  return optimizer == Optimizer::adamw ? "adamw" : "sgd";
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text.append(text.empty() ? "" : ",").append(word);
  return text;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> words;
  std::istringstream in(text);
  for (std::string word; std::getline(in, word, ',');) {
    if (!word.empty()) words.push_back(word);
  }
  return words;
}

/// The models that the options name, as they are trained here.
std::vector<Configuration> models(const OptionTable& table, Device device) {
  std::vector<Configuration> configurations;
  const std::array<std::string_view, 1> more = {kToyMlp};
  const bool tied = table.flag("--tie-head");
  for (model_options::ModelSetup& setup : model_options::expand_models(table, more)) {
    Configuration& c = configurations.emplace_back();
    static_cast<model_options::ModelSetup&>(c) = std::move(setup);
    const bool toy = c.size == kToyMlp;
    c.modes = {false, false, true};
    c.learning_rate = table.has("--learning-rate") ? table.number("--learning-rate", 0, 1)
                      : toy                        ? kToyLearningRate
                                                   : 1e-3;
    c.model.tied_head = tied && !toy;
    c.side_stream =
        table.flag("--side-stream") && !toy && c.structure == transformer::Structure::fused && device.is_cuda();
  }
  return configurations;
}

std::vector<const Backend*> backends(const OptionTable& table, Device device) {
  std::vector<const Backend*> chosen = harness::launch::chosen_backends(table, device);
  if (!table.text("--backend").empty()) return chosen;
  // The first one that is there.
  collectives::GroupShape alone;
  for (const Backend* backend : chosen) {
    if (!backend->unavailable(alone)) return {backend};
  }
  chosen.resize(std::min<std::size_t>(chosen.size(), 1));
  return chosen;
}

}  // namespace

std::string DataParallelConfiguration::bucket_text() const {
  if (kind == Kind::fitted) return std::string(kFit);
  return bucket_bytes == 0 ? "" : harness::format_exact_size(bucket_bytes);
}

std::string DataParallelConfiguration::describe() const {
  const std::string bucket = bucket_text();
  return fmt::format("{}{} over {} ranks of {}", data_parallel::name(strategy),
                     bucket.empty() ? "" : " (" + bucket + ")", world_size, backend->name());
}

bool wants_data_parallel(const OptionTable& table) {
  return table.has("--data-parallel");
}

void add_data_parallel_options(OptionTable& table) {
  OptionSpec strategies = option(
      "--data-parallel", "NAMES", "", "naive, flat, overlap, bucketed, or all",
      "Train copies of the model on several ranks and time the step: naive averages gradients by a call for each "
      "parameter after the backward, flat by one call, overlap and bucketed while the backward goes on. --batch is a "
      "rank's. Also trains the size toy_mlp, the notes' 16 -> 32 -> 4.",
      "--data-parallel naive,flat,overlap,bucketed");
  table.add(std::move(strategies));
  OptionSpec world = option("--world-size", "LIST", "", "whole numbers from 1 to 64, lists and ranges",
                            "Ranks, which this program starts on this host. A launcher's number is the launcher's.",
                            "--world-size 2,4");
  world.default_note = "2 on the CPU, every GPU of this host on GPUs";
  table.add(std::move(world));
  OptionSpec backend = option("--backend", "NAMES", "", harness::launch::backend_words() + ", or all",
                              "What the ranks communicate by.", "--backend shm,gloo");
  backend.default_note = "shm on the CPU, nccl on GPUs";
  table.add(std::move(backend));
  OptionSpec bucket =
      option("--bucket-size", "LIST", "", "sizes such as 1MiB,25MiB",
             "bucketed: most bytes of a bucket; a larger parameter has one to itself. With several a row more fits "
             "what a call "
             "and a byte cost, and says which size should be best. Sharded: most bytes of updated weights that a rank "
             "sends first, where less than 4 MiB; each later call sends half as many again.",
             "--bucket-size 1MiB,10MiB,25MiB,100MiB");
  bucket.default_note = "25MiB";
  table.add(std::move(bucket));
  table.add(flag("--copy", "--no-copy",
                 "flat and bucketed: copy gradients into the array of each call and back, as where they do not live in "
                 "it.",
                 "--copy=both"));
  table.add(flag("--shard-optimizer", "--no-shard-optimizer",
                 "Each parameter's optimizer state is on one rank alone, which updates it and sends it to the others.",
                 "--shard-optimizer=both"));
  table.add(option("--shard-by", "NAMES", "bytes", "bytes, modulo, or all",
                   "Sharded: bytes gives every rank as many as can be, in a run of neighbours; modulo gives parameter "
                   "i to rank i mod world size.",
                   "--shard-by bytes,modulo"));
  table.add(option("--optimizer", "NAMES", "adamw", "adamw, sgd",
                   "sgd is plain gradient descent, for fp32 weights: what a verification can compare most closely.",
                   "--optimizer sgd"));
  table.add(option("--micro-batches", "LIST", "1", "whole numbers from 1",
                   "Batches whose gradients add up before they are averaged and the optimizer steps.",
                   "--micro-batches 1,4"));
  OptionSpec freeze =
      option("--freeze", "WORDS", "", "parts of names of parameters, with commas between",
             "Parameters whose names contain one of the words are not trained.", "--freeze token_embeddings,layers.0.");
  freeze.default_note = "none";
  table.add(std::move(freeze));
  OptionSpec tie = option("--tie-head", "", "false", "", "The head's weights are the embedding's.", "--tie-head");
  table.add(std::move(tie));
  OptionSpec verify =
      option("--verify", "STEPS", "", "a whole number from 1 to 10000",
             "Instead of timing take so many steps on other data each, and compare every parameter with that of one "
             "process that has trained on all ranks' batches together. fp32.",
             "--verify 5");
  table.add(std::move(verify));
  harness::launch::add_group_options(table);
  table.add_presets({{"data_parallel",
                      "the notes' question on xl: a call for each parameter, one for all, calls during the backward, "
                      "buckets of 1 to 1000 MiB",
                      {{"--size", "xl"},
                       {"--precision", "fp32"},
                       {"--batch", "4"},
                       {"--context", "128"},
                       {"--data-parallel", "naive,flat,overlap,bucketed"},
                       {"--bucket-size", "1MiB,10MiB,100MiB,1000MiB"}}}});
  table.add_examples({
      "e2e_bench --size tiny --data-parallel all --world-size 2,4",
      "e2e_bench --size toy_mlp --data-parallel all --verify 5",
      "e2e_bench --preset data_parallel --device cuda --shard-optimizer=both",
      "mpirun -np 4 e2e_bench --size small --data-parallel bucketed --backend mpi",
  });
}

void check_data_parallel_options(const OptionTable& table) {
  if (wants_data_parallel(table)) {
    for (const char* other : {"--breakdown", "--dtypes", "--train-steps", "--mode", "--graph"}) {
      if (!table.given(other)) continue;
      throw harness::UsageError(
          std::string("--data-parallel and ") + other +
          ": with --data-parallel whole training steps are timed, uncaptured; give one of the two");
    }
    if (table.has("--cache") && table.text("--cache") == "cold") {
      throw harness::UsageError("--cache", "cold", "with --data-parallel a step finds what the last one left", "hot");
    }
    return;
  }
  for (const char* needs : {"--world-size", "--backend", "--bucket-size", "--copy", "--shard-optimizer", "--shard-by",
                            "--optimizer", "--micro-batches", "--freeze", "--tie-head", "--verify", "--timeout",
                            "--rendezvous", "--threads", "--max-blocks", "--interface", "--auto-table"}) {
    if (table.given(needs))
      throw table.error(needs, "only with --data-parallel NAMES (naive, flat, overlap, bucketed)");
  }
}

void adjust_data_parallel(const OptionTable& table, harness::Settings& settings) {
  if (settings.device_was_auto && settings.device.is_cuda() && !table.text("--backend").empty()) {
    const auto chosen = harness::launch::chosen_backends(table, settings.device);
    const bool on_gpus = std::any_of(chosen.begin(), chosen.end(),
                                     [](const Backend* backend) { return backend->device_kind() == DeviceKind::cuda; });
    if (!on_gpus) settings.device = Device::cpu();
  }
  if (!table.given("--cache")) settings.cache = harness::CacheState::hot;  // a step finds what the last one left
}

std::vector<DataParallelConfiguration> expand_data_parallel(const OptionTable& table, const harness::Settings& settings,
                                                            int launched) {
  check_data_parallel_options(table);
  DataParallelConfiguration base;
  base.max_blocks = harness::launch::backend_options(table).max_blocks;  // refuses what the ranks would
  const auto strategies = table.words("--data-parallel", kStrategies, true);
  std::vector<std::uint64_t> buckets;
  if (table.has("--bucket-size")) buckets = table.sizes("--bucket-size");
  for (const std::uint64_t bytes : buckets) {
    if (bytes < 4) throw table.error("--bucket-size", harness::format_exact_size(bytes), "not one element fits");
  }
  const auto copies = table.flags("--copy");
  const auto shardings = table.flags("--shard-optimizer");
  const auto rules = table.words("--shard-by", kShardRules, true);
  const auto optimizers = table.words("--optimizer", kOptimizers, true);
  const auto micro_batches = table.integers("--micro-batches", 1, 1 << 16);

  base.frozen = split(table.text("--freeze"));
  if (table.has("--verify")) {
    base.kind = Kind::verified;
    base.verify_steps = table.integer("--verify", 1, 10'000);
  }
  std::vector<std::int64_t> worlds;
  if (!table.text("--world-size").empty()) {
    worlds = table.integers("--world-size", 1, harness::launch::kMostRanks);
  } else {
    worlds = {settings.device.is_cpu() ? 2 : std::max(1, cuda_device_count())};
  }
  if (launched > 0) {
    if (!table.text("--world-size").empty() && worlds != std::vector<std::int64_t>{launched}) {
      throw table.error("--world-size", "a launcher has started " + std::to_string(launched) + " ranks");
    }
    worlds = {launched};
  }

  std::vector<DataParallelConfiguration> configurations;
  const auto add_strategies = [&](DataParallelConfiguration c) {
    for (const std::string& word : strategies) {
      c.strategy = strategy_of(word);
      const bool bucketed = c.strategy == Strategy::bucketed;
      const bool copies_mean_something = bucketed || c.strategy == Strategy::flat;
      for (const bool copy : copies) {
        if (copy && !copies_mean_something) continue;
        c.copy = copy;
        std::vector<std::uint64_t> sizes{0};
        if (bucketed || c.shards) sizes = buckets.empty() ? std::vector<std::uint64_t>{kDefaultBucket} : buckets;
        if (!bucketed) sizes.resize(1);
        for (const std::uint64_t bytes : sizes) {
          c.bucket_bytes = bytes;
          configurations.push_back(c);
        }
        if (bucketed && c.kind == Kind::timed && sizes.size() > 1) {
          DataParallelConfiguration fit = c;
          fit.kind = Kind::fitted;
          fit.bucket_bytes = 0;
          fit.bucket_list = sizes;
          configurations.push_back(std::move(fit));
        }
      }
    }
  };
  for (const Configuration& model : models(table, settings.device)) {
    base.model = model;
    for (const Backend* backend : backends(table, settings.device)) {
      base.backend = backend;
      for (const std::int64_t world : worlds) {
        base.world_size = static_cast<int>(world);
        if (base.toy() && !table.given("--batch")) {
          // The notes' batch is that of all ranks together.
          base.model.batch = std::max<std::int64_t>(1, data_parallel::ToyMlp::kBatchOfTheNotes / world);
        }
        for (const std::int64_t micro : micro_batches) {
          base.micro_batches = micro;
          for (const std::string& optimizer : optimizers) {
            base.optimizer = optimizer == "adamw" ? Optimizer::adamw : Optimizer::sgd;
            for (const bool sharded : shardings) {
              base.shards.reset();
              if (!sharded) {
                add_strategies(base);
                continue;
              }
              for (const std::string& rule : rules) {
                base.shards = rule == "bytes" ? ShardRule::bytes : ShardRule::modulo;
                add_strategies(base);
              }
            }
          }
        }
      }
    }
  }
  if (configurations.empty()) throw table.error("--copy", "naive and overlap send each gradient from where it lives");
  return configurations;
}

std::vector<std::string> data_parallel_row_keys() {
  std::vector<std::string> keys = e2e_bench::row_keys();
  keys.insert(keys.end(), {"backend", "world_size", "strategy", "bucket", "copy", "shard_optimizer", "optimizer",
                           "micro_batches", "freeze", "tied_head", "verify_steps"});
  return keys;
}

reports::Object describe(const DataParallelConfiguration& c) {
  reports::Object object = describe(c.model);
  if (c.toy()) {
    for (const char* field :
         {"structure", "attention", "recompute", "context", "d_model", "d_ff", "num_layers", "num_heads", "vocab"}) {
      object.set(field, nullptr);
    }
  }
  const std::string bucket = c.bucket_text();
  object.set("backend", c.backend->name());
  object.set("world_size", c.world_size);
  object.set("strategy", data_parallel::name(c.strategy));
  object.set("bucket", bucket.empty() ? reports::Value() : reports::Value(bucket));
  object.set("copy", c.copy);
  object.set("shard_optimizer", c.shards ? data_parallel::name(*c.shards) : "no");
  object.set("optimizer", optimizer_name(c.optimizer));
  object.set("micro_batches", c.micro_batches);
  object.set("freeze", c.frozen.empty() ? reports::Value() : reports::Value(joined(c.frozen)));
  object.set("tied_head", c.model.model.tied_head);
  object.set("verify_steps", c.kind == Kind::verified ? reports::Value(c.verify_steps) : reports::Value());
  return object;
}

std::vector<std::pair<std::string, std::string>> option_values(const DataParallelConfiguration& c, Device device) {
  auto values = option_values(c.model, device);
  for (auto& [name, text] : values) {
    if (name == "--mode" || name == "--graph" || name == "--train-steps") text.clear();
    if (c.toy() && (name == "--attention" || name == "--context")) text.clear();
  }
  std::string bucket = c.bucket_text();
  if (c.kind == Kind::fitted) {
    bucket.clear();
    for (const std::uint64_t bytes : c.bucket_list) {
      bucket.append(bucket.empty() ? "" : ",").append(harness::format_exact_size(bytes));
    }
  }
  const auto both = [](bool value) { return std::string(value ? "true" : "false"); };
  values.insert(values.end(), {{"--data-parallel", std::string(data_parallel::name(c.strategy))},
                               {"--backend", std::string(c.backend->name())},
                               {"--world-size", std::to_string(c.world_size)},
                               {"--bucket-size", bucket},
                               {"--copy", both(c.copy)},
                               {"--shard-optimizer", both(c.shards.has_value())},
                               {"--shard-by", c.shards ? std::string(data_parallel::name(*c.shards)) : ""},
                               {"--optimizer", optimizer_name(c.optimizer)},
                               {"--micro-batches", std::to_string(c.micro_batches)},
                               {"--freeze", joined(c.frozen)},
                               {"--tie-head", both(c.model.model.tied_head)},
                               {"--verify", c.kind == Kind::verified ? std::to_string(c.verify_steps) : ""}});
  return values;
}

std::optional<std::string> unsupported(const DataParallelConfiguration& c, Device device,
                                       const collectives::GroupShape& shape) {
  if (auto reason = c.backend->unavailable(shape)) return reason;
  if (c.backend->device_kind() != device.kind) {
    return fmt::format("{} is for {}, and this is {}", c.backend->name(), device.is_cpu() ? "GPUs" : "the CPU",
                       device.is_cpu() ? "the CPU" : "a GPU");
  }
  const bool fp32 = c.model.precision.activation == DType::fp32;
  if (c.toy()) {
    if (c.model.precision.name != "fp32") return "toy_mlp is fp32";
  } else if (auto reason = unsupported(c.model, device)) {
    return reason;
  }
  if (c.optimizer == Optimizer::sgd && !fp32) return "sgd is for fp32 weights";
  if (c.kind == Kind::verified && c.model.precision.name != "fp32") return "the bounds of a verification are fp32's";
  return c.backend->unsupported(collectives::CollectiveKind::all_reduce, collectives::ReduceOp::avg,
                                c.model.precision.gradient);
}

}  // namespace warpmeter::e2e_bench
