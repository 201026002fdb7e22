#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/collectives/backend.hpp"
#include "kernels/data_parallel/reducer.hpp"
#include "kernels/data_parallel/shards.hpp"
#include "kernels/data_parallel/trainee.hpp"
#include "tools/e2e_bench/configuration.hpp"

namespace warpmeter::e2e_bench {

/// The size that is no transformer: data_parallel::ToyMlp.
inline constexpr std::string_view kToyMlp = "toy_mlp";

/// One row of data-parallel training.
struct DataParallelConfiguration {
  /// What a row does.
  enum class Kind : std::uint8_t {
    timed,     ///< steps are timed
    verified,  ///< steps are compared with one process's training on the whole batch
    fitted,    ///< communication alone over all bucket sizes, and what it says of the best one
  };

  Kind kind = Kind::timed;
  Configuration model;
  const collectives::Backend* backend = nullptr;
  int world_size = 2;
  data_parallel::Strategy strategy = data_parallel::Strategy::bucketed;
  std::uint64_t bucket_bytes = 0;  ///< bucketed: most of a bucket; sharded: most sent first. 0: the default
  bool copy = false;
  std::optional<data_parallel::ShardRule> shards;  ///< none: the optimizer is not sharded
  data_parallel::Optimizer optimizer = data_parallel::Optimizer::adamw;
  std::int64_t micro_batches = 1;
  int max_blocks = 0;                      ///< --max-blocks: multiprocessors of a collective; 0: the backend's choice
  std::vector<std::string> frozen;         ///< parts of the names of parameters that are not trained
  std::int64_t verify_steps = 0;           ///< of a verified row
  std::vector<std::uint64_t> bucket_list;  ///< of a fitted row

  [[nodiscard]] bool toy() const { return model.size == kToyMlp; }
  /// Samples of a step over all ranks.
  [[nodiscard]] std::int64_t samples() const { return model.batch * world_size * micro_batches; }
  /// What the backward's products are not to count on, as calls beside them take it. Not in rows that compare bits
  /// between strategies.
  [[nodiscard]] int spare_multiprocessors() const {
    constexpr int kByThemselves = 64;  // that backends take where nothing bounds them: no less is no bound
    const bool beside = strategy == data_parallel::Strategy::overlap || strategy == data_parallel::Strategy::bucketed;
    return beside && kind != Kind::verified && max_blocks < kByThemselves ? max_blocks : 0;
  }
  [[nodiscard]] std::string bucket_text() const;
  /// For messages: "bucketed (25MiB) over 2 ranks of shm".
  [[nodiscard]] std::string describe() const;
};

/// Whether the options ask for such rows.
[[nodiscard]] bool wants_data_parallel(const harness::OptionTable& table);
/// Their options, in the groups "Data parallel" and "Ranks".
void add_data_parallel_options(harness::OptionTable& table);
/// Throws UsageError for options that need --data-parallel and stand without it.
void check_data_parallel_options(const harness::OptionTable& table);
/// CPU or GPU where --device leaves it open.
void adjust_data_parallel(const harness::OptionTable& table, harness::Settings& settings);
/// Models outermost, then backend, world size, optimizer and how it is sharded; strategies with their bucket sizes
/// innermost. `launched`: ranks that a launcher has started, 0 for none. Throws UsageError.
[[nodiscard]] std::vector<DataParallelConfiguration> expand_data_parallel(const harness::OptionTable& table,
                                                                          const harness::Settings& settings,
                                                                          int launched);
[[nodiscard]] std::vector<std::string> data_parallel_row_keys();
[[nodiscard]] reports::Object describe(const DataParallelConfiguration& configuration);
[[nodiscard]] std::vector<std::pair<std::string, std::string>> option_values(
    const DataParallelConfiguration& configuration, Device device);
/// Why this build, device or `shape` of group cannot run it.
[[nodiscard]] std::optional<std::string> unsupported(const DataParallelConfiguration& configuration, Device device,
                                                     const collectives::GroupShape& shape);

}  // namespace warpmeter::e2e_bench
