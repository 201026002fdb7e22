#include "tools/e2e_bench/training_case.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numbers>
#include <numeric>

#include "kernels/transformer/graph.hpp"
#include "kernels/transformer/markov.hpp"
#include "tools/e2e_bench/model_case.hpp"
#include "tools/harness/sampler.hpp"

namespace warpmeter::e2e_bench {

namespace {

constexpr std::int64_t kCurvePoints = 20;
constexpr double kMiB = 1024.0 * 1024.0;

double mean(const std::vector<double>& losses, std::int64_t begin, std::int64_t end) {
  return std::accumulate(losses.begin() + begin, losses.begin() + end, 0.0) / static_cast<double>(end - begin);
}

}  // namespace

double learning_rate_share(std::int64_t step, std::int64_t steps) {
  const std::int64_t rising = std::max<std::int64_t>(1, steps / 20);
  if (step < rising) return static_cast<double>(step + 1) / static_cast<double>(rising);
  const double done =
      static_cast<double>(step - rising) / static_cast<double>(std::max<std::int64_t>(1, steps - rising));
  constexpr double kLeast = 0.1;
  return kLeast + (1 - kLeast) * 0.5 * (1 + std::cos(std::numbers::pi * done));
}

harness::Prediction TrainingCase::predict() const {
  Configuration c = configuration_;
  c.modes = {false, false, true};
  harness::Prediction prediction = e2e_bench::predict(c, device_);
  // For the remaining time: all steps.
  const reports::Value* step = prediction.details.find("train_step_flops");
  prediction.details.set("training_flops", step->as_number().value_or(0) * static_cast<double>(c.train_steps));
  return prediction;
}

void TrainingCase::run(harness::Session& session, reports::Row& row) {
  const Configuration& c = configuration_;
  const Context context = session.context();
  const std::int64_t steps = c.train_steps;
  reports::Object& figures = row.figures;
  figures.set("parameters", c.model.parameters());

  transformer::MarkovSource source(c.model.vocab, session.settings().seed);
  transformer::Model model(context, c.model, c.options(session.settings().device));
  model.initialize(session.settings().seed);
  model.prepare_training();
  session.allocator().reset_peak();

  std::vector<std::int32_t> tokens(static_cast<std::size_t>(c.tokens())), targets(tokens.size());
  std::vector<double> losses;
  std::optional<transformer::Graph> graph;
  const auto step = [&] {
    model.forward_backward();
    model.optimizer_step();
  };
  const auto begin = std::chrono::steady_clock::now();
  for (std::int64_t i = 0; i < steps; ++i) {
    harness::throw_if_interrupted();
    source.next_batch(c.batch, c.context, tokens, targets);
    model.set_batch(tokens, targets);
    model.set_learning_rate(static_cast<float>(c.learning_rate * learning_rate_share(i, steps)));
    if (graph) {
      graph->launch(context.stream);
    } else {
      step();
      if (c.graph) graph.emplace(context.stream, step);
    }
    losses.push_back(static_cast<double>(model.loss()));
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();

  const std::int64_t last = std::max<std::int64_t>(1, steps / 10);
  const double final_loss = mean(losses, steps - last, steps);
  figures.set("entropy", source.entropy());
  figures.set("first_loss", losses.front());
  figures.set("final_loss", final_loss);
  figures.set("loss_over_entropy", final_loss / source.entropy());
  figures.set("training_s", seconds);
  figures.set("tokens_per_s", static_cast<double>(c.tokens() * steps) / seconds);
  figures.set("train_peak_mem_mib", static_cast<double>(session.allocator().stats().peak.allocated) / kMiB);
  const layers::StepState state = model.step_state();
  figures.set("updates", static_cast<std::int64_t>(state.step));
  figures.set("skipped_steps", static_cast<std::int64_t>(state.skipped));
  if (c.precision.loss_scaling) figures.set("loss_scale", static_cast<double>(state.loss_scale));

  // Means of the steps since the last point.
  const std::int64_t points = std::min(steps, kCurvePoints);
  reports::Value::Array at, values;
  for (std::int64_t point = 0; point < points; ++point) {
    const std::int64_t from = steps * point / points, to = steps * (point + 1) / points;
    at.emplace_back(to);
    values.emplace_back(std::round(mean(losses, from, to) * 1e5) / 1e5);
  }
  figures.set("curve_steps", std::move(at));
  figures.set("curve_losses", std::move(values));
  if (!std::isfinite(final_loss)) {
    row.status = reports::Status::mismatch;
    row.reason = "the loss is not finite";
  }
}

}  // namespace warpmeter::e2e_bench
