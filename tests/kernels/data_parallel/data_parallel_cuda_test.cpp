// Data-parallel training on GPUs: the order between streams under random delays, and two ranks' training against one
// process's. Ranks are processes of their own, started before any of them touches CUDA; two may share one GPU.
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <unistd.h>

#include "kernels/attention/registry.hpp"
#include "kernels/data_parallel/gradient_descent.hpp"
#include "kernels/data_parallel/model_trainee.hpp"
#include "kernels/data_parallel/reducer.hpp"
#include "kernels/data_parallel/toy_mlp.hpp"
#include "kernels/data_parallel/update.hpp"
#include "tests/kernels/collectives/gpu_ranks.hpp"

namespace warpmeter::data_parallel {
namespace {

using collectives::Collective;
using collectives::CollectiveKind;
using collectives::Communicator;
using collectives::RankContext;
using collectives::Work;
using collectives::ranks::launch_on_gpus;
using collectives::ranks::require;

/// A group of one in whose arithmetic a call that comes too early or too late shows: all_reduce halves.
class Halving final : public Communicator {
 public:
  explicit Halving(const Context& context) : Communicator(0, 1), context_(context), state_(context, 64) {
    layers::StepState state;
    state.learning_rate = 0.5f;
    copy_bytes(state_.data(), context.device(), &state, Device::cpu(), sizeof(state), context.stream);
    synchronize(context.stream);
  }
  [[nodiscard]] std::string_view backend() const noexcept override { return "halving"; }
  [[nodiscard]] collectives::CommunicatorBuffer allocate(std::size_t bytes) override {
    const auto memory = std::make_shared<Buffer>(context_, bytes);
    return {std::shared_ptr<void>(memory, memory->data()), bytes};
  }

 protected:
  void run(const Collective& collective) override { (void)start(collective); }
  Work start(const Collective& c) override {
    if (c.kind != CollectiveKind::all_reduce) return {};
    auto* data = static_cast<float*>(c.output.data);
    gradient_descent({c.stream, context_.allocator}, {.count = c.output.count,
                                                      .weight = data,
                                                      .gradient = data,
                                                      .scale_gradients = false,
                                                      .state = static_cast<const layers::StepState*>(state_.data())});
    return {};
  }

 private:
  Context context_;
  Buffer state_;
};

/// Holds streams up for up to two milliseconds, now and then.
class Delays {
 public:
  explicit Delays(std::uint64_t seed) : engine_(seed) {}
  void operator()(StreamView stream) {
    if (engine_() % 3 == 0) return;
    const auto microseconds = static_cast<std::uintptr_t>(engine_() % 2000);
    WM_CUDA_CHECK(cudaLaunchHostFunc(
        static_cast<cudaStream_t>(stream.handle),
        [](void* time) { usleep(static_cast<useconds_t>(reinterpret_cast<std::uintptr_t>(time))); },
        reinterpret_cast<void*>(microseconds)));
  }

 private:
  std::mt19937_64 engine_;
};

struct Training {
  Strategy strategy = Strategy::bucketed;
  std::optional<ShardRule> shards{};
  std::function<void(StreamView)> delays{};
  bool copy = false;
  bool resident = false;  ///< weights are in the group's memory
};

transformer::ModelOptions model_options(Device device, std::int64_t batch) {
  transformer::ModelOptions options;
  options.precision = *transformer::find_precision("fp32");
  options.attention = attention::find_implementation(device.kind, "flash");
  options.batch = batch;
  options.context = 16;
  options.learning_rate = 1e-2f;
  options.matmul.try_candidates = false;
  return options;
}

using MakeTrainee = std::function<std::unique_ptr<Trainee>(const Context&, std::int64_t batch, bool resident)>;
constexpr transformer::ModelConfig kModel{.vocab = 50, .d_model = 64, .d_ff = 128, .layers = 2, .heads = 2};
constexpr std::int64_t kBatch = 4, kSteps = 4;

std::unique_ptr<Trainee> model(const Context& context, std::int64_t batch, bool resident) {
  transformer::ModelOptions options = model_options(context.device(), batch);
  options.resident_weights = resident;
  return std::make_unique<ModelTrainee>(context, kModel, options, Optimizer::sgd);
}
std::unique_ptr<Trainee> toy(const Context& context, std::int64_t batch, bool resident) {
  ToyMlpOptions options;
  options.batch = batch;
  options.optimizer = Optimizer::sgd;
  options.learning_rate = 0.1f;
  options.resident_weights = resident;
  return std::make_unique<ToyMlp>(context, options);
}

/// All parameters after some steps.
std::vector<std::vector<float>> train(Communicator& group, const Context& context, const Training& training,
                                      const MakeTrainee& make, std::int64_t batch) {
  collectives::CommunicatorBuffer weights;
  const std::unique_ptr<Trainee> trainee = make(context, batch, training.resident);
  if (training.resident) {
    weights = group.allocate(trainee->weight_bytes());
    trainee->reside_weights(weights.data());
  }
  trainee->initialize(7 + static_cast<std::uint64_t>(group.rank()));
  const GradientPlan plan(trainee->parameters(), sizeof(float));
  const Buffer gradients(context, static_cast<std::size_t>(plan.elements()) * sizeof(float));
  fill_bytes(gradients.data(), context.device(), 0, gradients.bytes(), context.stream);
  trainee->reside_gradients(gradients.data(), plan.places());
  broadcast_weights(group, context, *trainee);
  Update::Options update_options;
  update_options.sizes = {4 << 10, 16 << 10};
  update_options.before_enqueue = training.delays;
  if (training.shards) {
    std::vector<std::int64_t> bytes;
    for (const TrainedParameter& p : trainee->parameters()) bytes.push_back(p.count * 4);
    update_options.shards.emplace(*training.shards, group.world_size(), bytes);
    trainee->keep_state_of(update_options.shards->owned_by(group.rank()));
  }
  ReducerOptions options;
  options.strategy = training.strategy;
  options.bucket_bytes = 32 << 10;
  options.copy = training.copy;
  options.before_enqueue = training.delays;
  GradientReducer reducer(group, context, gradients.data(), DType::fp32, plan, options);
  trainee->observe_gradients(&reducer);
  trainee->prepare_training();
  Update update(group, context, *trainee, update_options);
  for (std::int64_t step = 0; step < kSteps; ++step) {
    trainee->set_batch(3, step, group.rank() * batch, group.world_size() * batch);
    reducer.begin();
    trainee->forward_backward(false);
    reducer.finish();
    update.step();
  }
  reducer.wait();
  update.wait();
  synchronize(context.stream);
  std::vector<std::vector<float>> parameters;
  for (std::size_t i = 0; i < trainee->parameters().size(); ++i) parameters.push_back(trainee->parameter(i));
  return parameters;
}

const std::vector<Training> kTrainings = {{Strategy::flat},
                                          {Strategy::naive},
                                          {Strategy::overlap},
                                          {Strategy::bucketed},
                                          {Strategy::bucketed, ShardRule::bytes},
                                          {Strategy::overlap, ShardRule::modulo},
                                          {Strategy::bucketed, {}, {}, true},
                                          {Strategy::bucketed, ShardRule::bytes, {}, false, true},
                                          {Strategy::flat, ShardRule::modulo, {}, false, true}};

std::string describe(const Training& training) {
  return std::string(name(training.strategy)) + (training.shards ? " sharded" : "") + (training.copy ? " copied" : "") +
         (training.resident ? " in the group's memory" : "");
}

TEST(DataParallelCuda, DelayedStreamsChangeNothing) {
  WM_NEED_GPUS(1);
  const auto report = launch_on_gpus(1, [](const RankContext& rank) {
    CachingAllocator allocator(rank.device);
    const Stream stream(rank.device);
    const Context context{stream, &allocator};
    for (const MakeTrainee& make : {MakeTrainee(model), MakeTrainee(toy)}) {
      Halving group(context);
      const auto expected = train(group, context, kTrainings.front(), make, kBatch);
      for (Training training : kTrainings) {
        require(train(group, context, training, make, kBatch) == expected, describe(training) + " undelayed");
        for (const std::uint64_t seed : {1, 2}) {
          training.delays = Delays(seed);
          require(train(group, context, training, make, kBatch) == expected, describe(training) + " delayed");
        }
      }
    }
  });
  EXPECT_TRUE(report.ok()) << report.reason;
}

void train_on_two_ranks(const std::function<std::unique_ptr<Communicator>(const RankContext&)>& make_group) {
  const auto report = launch_on_gpus(2, [&](const RankContext& rank) {
    CachingAllocator allocator(rank.device);
    const Stream stream(rank.device);
    const Context context{stream, &allocator};
    const std::unique_ptr<Communicator> group = make_group(rank);
    for (const MakeTrainee& make : {MakeTrainee(model), MakeTrainee(toy)}) {
      const auto expected = train(*group, context, kTrainings.front(), make, kBatch);
      for (const Training& training : kTrainings) {
        require(train(*group, context, training, make, kBatch) == expected, describe(training) + " has other bits");
      }
      // One process, the ranks' batches together; its gradients are not halved.
      const std::unique_ptr<Trainee> single = make(context, 2 * kBatch, false);
      single->initialize(7);
      single->prepare_training();
      std::vector<std::size_t> all;
      for (std::size_t i = 0; i < single->parameters().size(); ++i) all.push_back(i);
      for (std::int64_t step = 0; step < kSteps; ++step) {
        single->set_batch(3, step, 0, 2 * kBatch);
        single->forward_backward(false);
        single->begin_update();
        single->update(all);
        single->end_update();
      }
      for (std::size_t i = 0; i < all.size(); ++i) {
        const std::vector<float> whole = single->parameter(i);
        float largest = 0, difference = 0;
        for (std::size_t k = 0; k < whole.size(); ++k) {
          largest = std::max(largest, std::abs(whole[k]));
          difference = std::max(difference, std::abs(whole[k] - expected[i][k]));
        }
        require(difference <= 2e-6f * largest,
                single->parameters()[i].name + " differs by " + std::to_string(difference / largest));
      }
    }
    rank.control->barrier();
  });
  EXPECT_TRUE(report.ok()) << report.reason;
}

TEST(DataParallelCuda, TwoRanksTrainAsOneProcessByP2p) {
  WM_NEED_GPUS(1);
  train_on_two_ranks([](const RankContext& rank) {
    collectives::P2pOptions options;
    options.share_gpus = true;
    return collectives::make_p2p(rank, options);
  });
}

#if WARPMETER_NCCL
TEST(DataParallelCuda, TwoRanksTrainAsOneProcessByNccl) {
  WM_NEED_GPUS(2);
  train_on_two_ranks([](const RankContext& rank) { return collectives::make_nccl(rank, collectives::NcclOptions{}); });
}
#endif

}  // namespace
}  // namespace warpmeter::data_parallel
