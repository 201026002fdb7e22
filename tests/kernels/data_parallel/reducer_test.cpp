// Which calls each strategy makes and when, in a group whose calls are written down.
#include "kernels/data_parallel/reducer.hpp"

#include <gtest/gtest.h>

#include "kernels/data_parallel/toy_mlp.hpp"
#include "kernels/data_parallel/update.hpp"

namespace warpmeter::data_parallel {
namespace {

using collectives::Collective;
using collectives::CollectiveKind;
using collectives::Communicator;
using collectives::Work;

/// all_reduce doubles what is there; asynchronous calls are done when they are waited for.
class Scripted final : public Communicator {
 public:
  struct Entry {
    CollectiveKind kind;
    std::int64_t begin, count;
    bool asynchronous;
    int root;
  };
  Scripted(int rank, int world_size, const float* base) : Communicator(rank, world_size), base_(base) {}
  [[nodiscard]] std::string_view backend() const noexcept override { return "scripted"; }
  [[nodiscard]] collectives::CommunicatorBuffer allocate(std::size_t) override { return {}; }
  std::vector<Entry> log;

 protected:
  void run(const Collective& c) override {
    note(c, false);
    work(c);
  }
  Work start(const Collective& c) override {
    note(c, true);
    struct Late final : collectives::WorkState {
      explicit Late(const Collective& c) : collective(c) {}
      [[nodiscard]] bool done() const override { return waited; }
      void wait() override {
        if (!waited) work(collective);
        waited = true;
      }
      Collective collective;
      bool waited = false;
    };
    return Work(std::make_shared<Late>(c));
  }

 private:
  static void work(const Collective& c) {
    if (c.kind != CollectiveKind::all_reduce) return;
    auto* data = static_cast<float*>(c.output.data);
    for (std::int64_t i = 0; i < c.output.count; ++i) data[i] *= 2;
  }
  void note(const Collective& c, bool asynchronous) {
    log.push_back({c.kind, static_cast<const float*>(c.output.data) - base_, c.output.count, asynchronous, c.root});
  }
  const float* base_;
};

class Reducer : public ::testing::Test {
 protected:
  CachingAllocator allocator_{Device::cpu()};
  Context context_{{Device::cpu(), nullptr}, &allocator_};
  GradientPlan plan_{{{"a", 256}, {"b", 256}, {"c", 512}, {"d", 256}}, 4};
  std::vector<float> gradients_ = std::vector<float>(static_cast<std::size_t>(plan_.elements()), 1.0f);
  Scripted group_{0, 2, gradients_.data()};

  std::vector<std::pair<std::int64_t, std::int64_t>> sent() const {
    std::vector<std::pair<std::int64_t, std::int64_t>> all;
    for (const auto& entry : group_.log) all.emplace_back(entry.begin, entry.count);
    return all;
  }
  void ready(GradientReducer& reducer, std::initializer_list<std::size_t> parameters) {
    for (const std::size_t i : parameters) reducer.gradient_ready(i, context_.stream);
  }
};

using Sent = std::vector<std::pair<std::int64_t, std::int64_t>>;

TEST_F(Reducer, NaiveAndFlatWaitForTheBackwardsEnd) {
  for (const Strategy strategy : {Strategy::naive, Strategy::flat}) {
    group_.log.clear();
    GradientReducer reducer(group_, context_, gradients_.data(), DType::fp32, plan_, {strategy});
    reducer.begin();
    ready(reducer, {3, 2, 1, 0});
    EXPECT_TRUE(group_.log.empty());
    reducer.finish();
    EXPECT_EQ(sent(),
              strategy == Strategy::naive ? (Sent{{0, 256}, {256, 256}, {512, 512}, {1024, 256}}) : (Sent{{0, 1280}}));
    for (const auto& entry : group_.log) EXPECT_FALSE(entry.asynchronous);
  }
  EXPECT_EQ(gradients_, std::vector<float>(gradients_.size(), 4.0f));
}

TEST_F(Reducer, OverlapSendsEachGradientWhenItIsThere) {
  GradientReducer reducer(group_, context_, gradients_.data(), DType::fp32, plan_, {Strategy::overlap});
  reducer.begin();
  ready(reducer, {3});
  EXPECT_EQ(sent(), (Sent{{1024, 256}}));
  // Out of turn: it waits for the one before it, so that every rank calls in one order.
  ready(reducer, {1});
  EXPECT_EQ(group_.log.size(), 1U);
  ready(reducer, {2});
  EXPECT_EQ(sent(), (Sent{{1024, 256}, {512, 512}, {256, 256}}));
  ready(reducer, {0});
  reducer.finish();
  EXPECT_EQ(group_.log.size(), 4U);
  EXPECT_EQ(reducer.calls(), 4);
  EXPECT_EQ(reducer.bytes(), 1280 * 4);
  EXPECT_EQ(gradients_, std::vector<float>(gradients_.size(), 2.0f));
}

TEST_F(Reducer, ABucketGoesWithItsLastGradient) {
  ReducerOptions options{Strategy::bucketed, 768 * 4};
  GradientReducer reducer(group_, context_, gradients_.data(), DType::fp32, plan_, options);
  reducer.begin();
  ready(reducer, {3});
  EXPECT_TRUE(group_.log.empty());
  ready(reducer, {2});
  EXPECT_EQ(sent(), (Sent{{512, 768}}));
  ready(reducer, {1, 0});
  EXPECT_EQ(sent(), (Sent{{512, 768}, {0, 512}}));
  for (const auto& entry : group_.log) EXPECT_TRUE(entry.asynchronous);
  reducer.finish();
  EXPECT_EQ(gradients_, std::vector<float>(gradients_.size(), 2.0f));
}

TEST_F(Reducer, WithoutBeginNothingIsSentAndTheNextStepBeginsAnew) {
  GradientReducer reducer(group_, context_, gradients_.data(), DType::fp32, plan_, {Strategy::bucketed, 768 * 4});
  ready(reducer, {3, 2, 1, 0});
  EXPECT_TRUE(group_.log.empty());
  for (int step = 0; step < 2; ++step) {
    reducer.begin();
    ready(reducer, {3, 2, 1, 0});
    reducer.finish();
  }
  EXPECT_EQ(group_.log.size(), 4U);
  EXPECT_EQ(gradients_, std::vector<float>(gradients_.size(), 4.0f));
}

TEST_F(Reducer, AGradientThatNeverComesIsSentAtTheEnd) {
  GradientReducer reducer(group_, context_, gradients_.data(), DType::fp32, plan_, {Strategy::bucketed, 768 * 4});
  reducer.begin();
  ready(reducer, {3, 1, 0});
  EXPECT_TRUE(group_.log.empty());
  reducer.finish();
  EXPECT_EQ(sent(), (Sent{{512, 768}, {0, 512}}));
}

TEST_F(Reducer, CopiesGoThereAndBack) {
  for (const Strategy strategy : {Strategy::flat, Strategy::bucketed}) {
    std::fill(gradients_.begin(), gradients_.end(), 3.0f);
    group_.log.clear();
    ReducerOptions options{strategy, 768 * 4};
    options.copy = true;
    GradientReducer reducer(group_, context_, gradients_.data(), DType::fp32, plan_, options);
    reducer.begin();
    ready(reducer, {3, 2, 1, 0});
    reducer.finish();
    EXPECT_EQ(gradients_, std::vector<float>(gradients_.size(), 6.0f));
    for (const auto& entry : group_.log) {
      EXPECT_FALSE(entry.begin >= 0 && entry.begin < plan_.elements()) << "sent from where the gradients live";
    }
  }
}

TEST_F(Reducer, FrozenParametersAreNotSent) {
  const GradientPlan plan({{"a", 256, false}, {"b", 256}, {"c", 512, false}, {"d", 256}}, 4);
  GradientReducer reducer(group_, context_, gradients_.data(), DType::fp32, plan, {Strategy::flat});
  reducer.begin();
  reducer.finish();
  EXPECT_EQ(sent(), (Sent{{0, 512}}));
}

TEST_F(Reducer, ShardsAreSentInTurnsByTheirOwners) {
  ToyMlpOptions options;
  options.batch = 4;
  ToyMlp mlp(context_, options);
  mlp.initialize(1);
  const std::vector<std::int64_t> bytes{2048, 128, 512, 16};
  const ShardMap shards(ShardRule::modulo, 2, bytes);
  Scripted group(1, 2, static_cast<const float*>(mlp.weights_of(0, 0).data));
  mlp.keep_state_of(shards.owned_by(1));
  mlp.prepare_training();
  Update::Options update_options;
  update_options.shards = shards;
  Update update(group, context_, mlp, update_options);
  mlp.set_batch(1, 0, 0, 4);
  mlp.forward_backward(false);
  std::vector<std::vector<float>> before;
  for (std::size_t i = 0; i < 4; ++i) before.push_back(mlp.parameter(i));
  update.step();
  EXPECT_EQ(update.calls(), 2);
  EXPECT_EQ(update.bytes(), (512 + 32 + 128 + 4) * 4);
  std::vector<int> roots;
  for (const auto& entry : group.log) {
    EXPECT_EQ(entry.kind, CollectiveKind::broadcast);
    roots.push_back(entry.root);
  }
  EXPECT_EQ(roots, (std::vector<int>{0, 1, 0, 1}));
  // This rank's own, and nothing else, has been updated here.
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(mlp.parameter(i) != before[i], i % 2 == 1) << i;
}

/// Of a ToyMlp's rounds: by rank, what each sends from where on and what it updates before.
struct Sends {
  std::int64_t begin = 0, count = 0;
  std::vector<std::size_t> parameters{};
  bool operator==(const Sends& other) const {
    return begin == other.begin && count == other.count && parameters == other.parameters;
  }
};
void PrintTo(const Sends& sends, std::ostream* out) {
  *out << sends.count << " from " << sends.begin << " with " << ::testing::PrintToString(sends.parameters);
}
std::vector<std::vector<Sends>> sends_of(const ToyMlp& mlp, const ShardMap& shards, const RoundSizes& sizes) {
  const auto* base = static_cast<const float*>(mlp.weights_of(0, 0).data);
  std::vector<std::vector<Sends>> all;
  for (const Round& round : rounds_of(mlp, shards, sizes)) {
    all.emplace_back();
    for (std::size_t r = 0; r < round.pieces.size(); ++r) {
      const auto& piece = round.pieces[r];
      EXPECT_EQ(piece.dtype, DType::fp32);
      const std::int64_t begin = piece.count > 0 ? static_cast<const float*>(piece.data) - base : -1;
      all.back().push_back({begin, piece.count, round.parameters[r]});
    }
  }
  return all;
}
using Rounds = std::vector<std::vector<Sends>>;

// 512, 32, 128 and 4 elements, at 0, 512, 768 and 1024.
TEST_F(Reducer, RoundsSendEachRanksRunsOfNeighbours) {
  ToyMlp mlp(context_, {});
  const std::vector<std::int64_t> bytes{2048, 128, 512, 16};
  const ShardMap by_bytes(ShardRule::bytes, 2, bytes);  // {0}, {1, 2, 3}
  EXPECT_EQ(sends_of(mlp, by_bytes, {}), (Rounds{{{0, 512, {0}}, {512, 516, {1, 2, 3}}}}));
  const ShardMap modulo(ShardRule::modulo, 3, bytes);
  EXPECT_EQ(sends_of(mlp, modulo, {}),
            (Rounds{{{0, 512, {0}}, {512, 32, {1}}, {768, 128, {2}}}, {{1024, 4, {3}}, {-1, 0, {}}, {-1, 0, {}}}}));
}

TEST_F(Reducer, RoundsGrowAndAreCutWithinParameters) {
  ToyMlp mlp(context_, {});
  const ShardMap shards(ShardRule::bytes, 2, std::vector<std::int64_t>{2048, 128, 512, 16});
  // 64, 64 (of 96), 128 (of 144) and 192 (of 216) elements, and what is left: more than a quarter again.
  EXPECT_EQ(sends_of(mlp, shards, {64 * 4, 1 << 20}), (Rounds{{{0, 64, {0}}, {512, 64, {1}}},
                                                              {{64, 64, {}}, {576, 64, {}}},
                                                              {{128, 128, {}}, {640, 128, {}}},
                                                              {{256, 192, {}}, {768, 192, {2}}},
                                                              {{448, 64, {}}, {960, 68, {3}}}}));
  EXPECT_EQ(sends_of(mlp, shards, {448 * 4, 1 << 20}), (Rounds{{{0, 512, {0}}, {512, 516, {1, 2, 3}}}}));
  const auto limited = sends_of(mlp, shards, {64 * 4, 128 * 4});
  EXPECT_EQ(limited.back(), (std::vector<Sends>{{384, 128, {}}, {896, 132, {3}}}));
  // Less than can be cut.
  EXPECT_EQ(sends_of(mlp, shards, {1, 1}).size(), 8U);
  EXPECT_EQ(sends_of(mlp, shards, {1, 1 << 20}), sends_of(mlp, shards, {64 * 4, 1 << 20}));
}

TEST_F(Reducer, FrozenParametersAreInNoRound) {
  ToyMlpOptions options;
  options.frozen = {false, true, false, true};
  ToyMlp mlp(context_, options);
  const ShardMap shards(ShardRule::bytes, 2, std::vector<std::int64_t>{2048, 0, 512, 0});
  EXPECT_EQ(sends_of(mlp, shards, {}), (Rounds{{{0, 512, {0}}, {768, 128, {2}}}}));
}

}  // namespace
}  // namespace warpmeter::data_parallel
