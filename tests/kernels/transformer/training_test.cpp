// Training is real: a small model learns a Markov source, to nearly its entropy and alike in every precision.
#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include "kernels/attention/registry.hpp"
#include "kernels/runtime/parallel.hpp"
#include "kernels/transformer/markov.hpp"
#include "kernels/transformer/model.hpp"
#include "tests/kernels/layers/device_array.hpp"

namespace warpmeter::transformer {
namespace {

TEST(Training, ReachesTheSourcesEntropyInEveryPrecision) {
  constexpr ModelConfig kConfig{.vocab = 40, .d_model = 32, .d_ff = 64, .layers = 1, .heads = 2};
  constexpr std::int64_t kBatch = 16, kContext = 24, kSteps = 260;
  const int threads = num_threads();
  set_num_threads(1);  // so small that threads would wait for one another most of the time
  std::vector<double> finals;
  double entropy = 0;
  for (const char* precision : {"fp32", "bf16", "fp16"}) {
    layers::testing::HostContext host;
    ModelOptions options;
    options.precision = *find_precision(precision);
    options.attention = attention::find_implementation(DeviceKind::cpu, "flash");
    options.batch = kBatch;
    options.context = kContext;
    Model model(host.context(), kConfig, options);
    model.initialize(1);
    model.prepare_training();
    MarkovSource source(kConfig.vocab, 1, 16, 3);
    entropy = source.entropy();
    std::vector<std::int32_t> tokens(kBatch * kContext), targets(tokens.size());
    std::vector<double> losses;
    for (std::int64_t step = 0; step < kSteps; ++step) {
      source.next_batch(kBatch, kContext, tokens, targets);
      model.set_batch(tokens, targets);
      model.set_learning_rate(0.02f * (1 - 0.95f * static_cast<float>(step) / kSteps));
      model.forward_backward();
      model.optimizer_step();
      losses.push_back(static_cast<double>(model.loss()));
    }
    finals.push_back(std::accumulate(losses.end() - 30, losses.end(), 0.0) / 30);
    EXPECT_GT(losses.front(), 2 * entropy);
    EXPECT_NEAR(finals.back() / entropy, 1, 0.05) << precision;
    EXPECT_GE(model.step_state().step, kSteps - 10) << "few steps may be skipped";
  }
  set_num_threads(threads);
  for (const double final_loss : finals) EXPECT_NEAR(final_loss / finals[0], 1, 0.02);
}

}  // namespace
}  // namespace warpmeter::transformer
