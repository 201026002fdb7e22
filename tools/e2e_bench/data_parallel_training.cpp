#include "tools/e2e_bench/data_parallel_training.hpp"

#include <algorithm>
#include <cstring>

#include <fmt/core.h>

#include "kernels/data_parallel/model_trainee.hpp"
#include "kernels/data_parallel/toy_mlp.hpp"
#include "kernels/runtime/check.hpp"
#include "kernels/transformer/parameter_layout.hpp"

namespace warpmeter::e2e_bench {

namespace {

using data_parallel::GradientPlan;
using data_parallel::ModelTrainee;
using data_parallel::ShardMap;
using data_parallel::ToyMlp;
using data_parallel::TrainedParameter;
using data_parallel::Trainee;
using transformer::Memory;
using transformer::MemoryKind;

std::vector<bool> frozen_of(const std::vector<std::string>& words, const std::vector<std::string>& names) {
  if (words.empty()) return {};
  std::vector<bool> frozen;
  for (const std::string& name : names) {
    frozen.push_back(std::any_of(words.begin(), words.end(),
                                 [&](const std::string& word) { return name.find(word) != std::string::npos; }));
  }
  return frozen;
}

/// Whether a rank's weights lie in the group's memory: where they are sent on, and the backend is faster so.
bool weights_of_group(const DataParallelConfiguration& c) {
  return c.shards && c.backend->prefers_own_memory();
}

std::vector<GradientPlan::Range> ranges_of(const DataParallelConfiguration& c, const GradientPlan& plan) {
  using data_parallel::Strategy;
  if (c.strategy == Strategy::flat) return plan.all_at_once();
  if (c.strategy == Strategy::bucketed && c.bucket_bytes != 0) return plan.buckets(c.bucket_bytes);
  return plan.one_each();
}

}  // namespace

std::unique_ptr<Trainee> make_trainee(const DataParallelConfiguration& c, const Context& context, bool whole,
                                      bool planning) {
  const std::int64_t batch = whole ? c.samples() : c.model.batch;
  const std::int64_t micro_batches = whole ? 1 : c.micro_batches;
  if (c.toy()) {
    data_parallel::ToyMlpOptions options;
    options.batch = batch;
    options.optimizer = c.optimizer;
    options.learning_rate = static_cast<float>(c.model.learning_rate);
    options.adamw.definition = c.model.adamw;
    options.frozen = frozen_of(c.frozen, {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"});
    options.micro_batches = micro_batches;
    options.resident_weights = !whole && weights_of_group(c);
    return std::make_unique<ToyMlp>(context, options, planning);
  }
  transformer::ModelOptions options = c.model.options(context.device());
  // Chosen by time, products could differ from row to row in how they add up, and so in their bits.
  if (c.kind == DataParallelConfiguration::Kind::verified) options.matmul.try_candidates = false;
  options.matmul.spare_multiprocessors = c.spare_multiprocessors();
  options.batch = batch;
  options.micro_batches = micro_batches;
  options.resident_weights = !whole && weights_of_group(c);
  std::vector<std::string> names;
  const transformer::ParameterLayout layout(c.model.model);
  for (const transformer::Parameter& parameter : layout.parameters()) names.push_back(parameter.name);
  options.frozen = frozen_of(c.frozen, names);
  return std::make_unique<ModelTrainee>(context, c.model.model, options, c.optimizer, planning);
}

std::optional<ShardMap> shards_of(const DataParallelConfiguration& c, const Trainee& trainee) {
  if (!c.shards) return std::nullopt;
  std::vector<std::int64_t> bytes;
  for (const TrainedParameter& p : trainee.parameters()) bytes.push_back(p.trainable ? p.count * 4 : 0);
  return ShardMap(*c.shards, c.world_size, bytes);
}

double step_flops(const DataParallelConfiguration& c) {
  if (c.toy()) return 3 * ToyMlp::kForwardFlops * static_cast<double>(c.samples());
  return static_cast<double>(c.micro_batches * c.world_size) * c.model.model.step_flops(c.model.batch, c.model.context);
}

RankMemory predict_rank_memory(const DataParallelConfiguration& c, Device device, int rank) {
  const Context context{{device, nullptr}, nullptr};
  const std::unique_ptr<Trainee> trainee = make_trainee(c, context, false, true);
  Memory& memory = trainee->memory();
  const std::size_t element = size_of(trainee->gradient_dtype());
  const GradientPlan plan(trainee->parameters(), element);
  transformer::Charge weights;
  if (weights_of_group(c)) {
    weights = transformer::Charge(memory, MemoryKind::parameters, Memory::rounded(trainee->weight_bytes()));
    trainee->reside_weights(nullptr);
  }
  transformer::Charge gradients(memory, MemoryKind::gradients,
                                Memory::rounded(static_cast<std::size_t>(plan.elements()) * element));
  trainee->reside_gradients(nullptr, plan.places());
  RankMemory result;
  if (const auto shards = shards_of(c, *trainee)) trainee->keep_state_of(shards->owned_by(rank));
  result.initialized = memory.current().total();
  std::vector<transformer::Charge> copies;
  if (c.copy) {
    for (const GradientPlan::Range& range : ranges_of(c, plan)) {
      copies.emplace_back(memory, MemoryKind::gradients,
                          Memory::rounded(static_cast<std::size_t>(range.count) * element));
    }
  }
  trainee->prepare_training();
  memory.reset_peak();
  for (std::int64_t m = 0; m < c.micro_batches; ++m) trainee->forward_backward(m > 0);
  result.before_update = memory.current().total();
  std::vector<std::size_t> all;
  for (std::size_t i = 0; i < trainee->parameters().size(); ++i) all.push_back(i);
  trainee->begin_update();
  trainee->end_update();
  result.after_update = memory.current().total();
  result.peak = memory.peak().total();
  return result;
}

RankTraining::RankTraining(const DataParallelConfiguration& configuration, collectives::Communicator& group,
                           const Context& context, std::uint64_t seed, const Locally& locally)
    : configuration_(configuration), group_(group), context_(context), seed_(seed) {
  const DataParallelConfiguration& c = configuration_;
  std::size_t bytes = 0;
  void* gradients = nullptr;
  locally([&] { trainee_ = make_trainee(c, context, false, false); });
  locally([&] {
    if (weights_of_group(c)) {
      shared_weights_ = group.allocate(trainee_->weight_bytes());
      trainee_->reside_weights(shared_weights_.data());
      external_bytes_ += shared_weights_.bytes();
    }
    // Each rank other weights, so that what all have in the end can only be rank 0's.
    trainee_->initialize(seed + static_cast<std::uint64_t>(group.rank()));
    plan_.emplace(trainee_->parameters(), size_of(trainee_->gradient_dtype()));
    bytes = static_cast<std::size_t>(plan_->elements()) * plan_->element_bytes();
  });
  locally([&] {
    if (c.backend->prefers_own_memory()) {
      shared_gradients_ = group.allocate(bytes);
      gradients = shared_gradients_.data();
      external_bytes_ += bytes;
    } else {
      plain_gradients_ = Buffer(context, bytes);
      gradients = plain_gradients_.data();
    }
    fill_bytes(gradients, context.device(), 0, bytes, context.stream);
    trainee_->reside_gradients(gradients, plan_->places());
  });
  data_parallel::broadcast_weights(group, context, *trainee_);
  locally([&] {
    shards_ = shards_of(c, *trainee_);
    if (shards_) trainee_->keep_state_of(shards_->owned_by(group.rank()));
    initialized_bytes_ = context.allocator->stats().current.allocated + external_bytes_;
    data_parallel::ReducerOptions options;
    options.strategy = c.strategy;
    if (c.bucket_bytes != 0) options.bucket_bytes = c.bucket_bytes;
    options.copy = c.copy;
    reducer_ = std::make_unique<data_parallel::GradientReducer>(group, context, gradients, trainee_->gradient_dtype(),
                                                                *plan_, options);
    trainee_->observe_gradients(reducer_.get());
    trainee_->prepare_training();
    data_parallel::Update::Options update;
    update.shards = shards_;
    if (c.bucket_bytes != 0) {
      update.sizes.first_bytes = std::min<std::size_t>(update.sizes.first_bytes, c.bucket_bytes);
    }
    update_ = std::make_unique<data_parallel::Update>(group, context, *trainee_, std::move(update));
    set_batch(0, 0);
    // Its memory is all that a step takes; nothing is sent and nothing changes but gradients.
    trainee_->forward_backward(false);
    synchronize(context.stream);
  });
}

void RankTraining::set_batch(std::int64_t step, std::int64_t micro_batch) {
  const DataParallelConfiguration& c = configuration_;
  const std::int64_t first = (micro_batch * c.world_size + group_.rank()) * c.model.batch;
  // The single process's seed is rank 0's.
  trainee_->set_batch(seed_, step, first, c.samples());
}

void RankTraining::step(bool communicate) {
  const std::int64_t last = configuration_.micro_batches - 1;
  for (std::int64_t m = 0; m <= last; ++m) {
    if (communicate && m == last) reducer_->begin();
    trainee_->forward_backward(m > 0);
  }
  if (communicate) {
    reducer_->finish();
    update_->step();
    return;
  }
  std::vector<std::size_t> owned;
  for (std::size_t i = 0; i < trainee_->parameters().size(); ++i) {
    if (!shards_ || shards_->owner(i) == group_.rank()) owned.push_back(i);
  }
  trainee_->begin_update();
  trainee_->update(owned);
  trainee_->end_update();
}

void RankTraining::step_on(std::int64_t step) {
  const std::int64_t last = configuration_.micro_batches - 1;
  for (std::int64_t m = 0; m <= last; ++m) {
    set_batch(step, m);
    if (m == last) reducer_->begin();
    trainee_->forward_backward(m > 0);
  }
  reducer_->finish();
  update_->step();
  wait();
}

void RankTraining::wait() {
  reducer_->wait();
  update_->wait();
  synchronize(context_.stream);
}

RankMemory RankTraining::measured_step() {
  CachingAllocator& allocator = *context_.allocator;
  RankMemory result;
  result.initialized = initialized_bytes_;
  allocator.reset_peak();
  const std::int64_t last = configuration_.micro_batches - 1;
  for (std::int64_t m = 0; m <= last; ++m) {
    if (m == last) reducer_->begin();
    trainee_->forward_backward(m > 0);
  }
  reducer_->finish();
  result.before_update = allocator.stats().current.allocated + external_bytes_;
  update_->step();
  wait();
  result.after_update = allocator.stats().current.allocated + external_bytes_;
  result.peak = allocator.stats().peak.allocated + external_bytes_;
  return result;
}

std::string RankTraining::fingerprint() {
  constexpr std::int64_t kMost = std::int64_t{1} << 16;
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  std::vector<unsigned char> bytes;
  for (std::size_t i = 0; i < trainee_->parameters().size(); ++i) {
    const collectives::CollectiveBuffer weights = trainee_->weights_of(i, i);
    bytes.resize(static_cast<std::size_t>(std::min(weights.count, kMost)) * size_of(weights.dtype));
    copy_bytes(bytes.data(), Device::cpu(), weights.data, context_.device(), bytes.size(), context_.stream);
    synchronize(context_.stream);
    for (const unsigned char byte : bytes) hash = (hash ^ byte) * 0x100000001b3;
  }
  return fmt::format("{:016x}", hash);
}

}  // namespace warpmeter::e2e_bench
