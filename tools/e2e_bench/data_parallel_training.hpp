#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/data_parallel/reducer.hpp"
#include "kernels/data_parallel/update.hpp"
#include "kernels/transformer/memory.hpp"
#include "tools/e2e_bench/data_parallel_configuration.hpp"

namespace warpmeter::e2e_bench {

/// One rank's copy of what a configuration trains, or with `whole` what one process would train on all ranks' samples
/// at once. `planning` as transformer::Model's. Throws OutOfMemory.
[[nodiscard]] std::unique_ptr<data_parallel::Trainee> make_trainee(const DataParallelConfiguration& configuration,
                                                                   const Context& context, bool whole, bool planning);
/// Which rank updates what; none where every rank updates everything.
[[nodiscard]] std::optional<data_parallel::ShardMap> shards_of(const DataParallelConfiguration& configuration,
                                                               const data_parallel::Trainee& trainee);
/// By the trained parameters: what a step's model FLOPs and samples are counted by.
[[nodiscard]] double step_flops(const DataParallelConfiguration& configuration);

/// A rank's memory, bytes: of its model by its own account, or as its allocator has it with what the backend gave.
struct RankMemory {
  std::size_t initialized = 0;    ///< weights, masters and gradients, before the optimizer's state
  std::size_t before_update = 0;  ///< after the backward and the averaging
  std::size_t after_update = 0;
  std::size_t peak = 0;
};
/// What rank `rank` will take, from a run without memory.
[[nodiscard]] RankMemory predict_rank_memory(const DataParallelConfiguration& configuration, Device device, int rank);

/// One rank in training.
class RankTraining {
 public:
  /// Does what a rank does by itself and may run out of memory in, and returns when all ranks have done it; throws
  /// where one has not.
  using Locally = std::function<void(const std::function<void()>&)>;
  /// Every rank calls it. Weights are rank 0's afterwards, and memory has been enough for a backward.
  RankTraining(const DataParallelConfiguration& configuration, collectives::Communicator& group, const Context& context,
               std::uint64_t seed, const Locally& locally);

  /// The rank's samples of step `step`.
  void set_batch(std::int64_t step, std::int64_t micro_batch);
  /// One step, with its communication or without. On GPUs enqueued; wait() then ends it.
  void step(bool communicate);
  /// step() with the data of step number `step` in each micro-batch.
  void step_on(std::int64_t step);
  void wait();
  /// A first step; how much memory there was on the way.
  [[nodiscard]] RankMemory measured_step();

  [[nodiscard]] data_parallel::Trainee& trainee() { return *trainee_; }
  [[nodiscard]] data_parallel::GradientReducer& reducer() { return *reducer_; }
  [[nodiscard]] data_parallel::Update& update() { return *update_; }
  [[nodiscard]] const std::optional<data_parallel::ShardMap>& shards() const { return shards_; }
  /// Of some 2^16 elements of every parameter's weights: the same on all ranks, or something is wrong.
  [[nodiscard]] std::string fingerprint();

 private:
  DataParallelConfiguration configuration_;
  collectives::Communicator& group_;
  Context context_;
  std::uint64_t seed_;
  std::size_t external_bytes_ = 0;
  std::size_t initialized_bytes_ = 0;
  std::unique_ptr<data_parallel::Trainee> trainee_;
  std::optional<data_parallel::GradientPlan> plan_;
  collectives::CommunicatorBuffer shared_weights_, shared_gradients_;
  Buffer plain_gradients_;
  std::optional<data_parallel::ShardMap> shards_;
  std::unique_ptr<data_parallel::GradientReducer> reducer_;
  std::unique_ptr<data_parallel::Update> update_;
};

}  // namespace warpmeter::e2e_bench
