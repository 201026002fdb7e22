#include "tools/e2e_bench/data_parallel_worker.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <new>

#include <fmt/core.h>

#include "kernels/collectives/control.hpp"
#include "kernels/data_parallel/overhead.hpp"
#include "kernels/data_parallel/waiting.hpp"
#include "kernels/runtime/check.hpp"
#include "kernels/runtime/event.hpp"
#include "kernels/runtime/parallel.hpp"
#include "tools/e2e_bench/data_parallel_training.hpp"
#include "tools/harness/grammar.hpp"
#include "tools/harness/launch/group_sampler.hpp"

namespace warpmeter::e2e_bench {

namespace {

using harness::launch::gather;
using harness::launch::GroupPhase;
using harness::launch::Outcome;
using harness::launch::RankAtWork;
using harness::launch::sample_together;
using harness::launch::Vote;
using reports::Status;
using Kind = DataParallelConfiguration::Kind;

constexpr double kMiB = 1024.0 * 1024.0;

/// Milliseconds of what `work` enqueues on the context's stream, with its end waited for.
template <class Work, class Wait>
double timed(const RankAtWork& rank, const Work& work, const Wait& wait) {
  const StreamView stream = rank.session.context().stream;
  if (stream.device.is_cuda() && rank.session.settings().timer == harness::TimerKind::device) {
    Event begin(stream.device), end(stream.device);
    begin.record(stream);
    work();
    end.record(stream);
    wait();
    return elapsed_ms(begin, end);
  }
  const auto begin = std::chrono::steady_clock::now();
  work();
  wait();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

reports::Value list_of(const std::vector<double>& numbers) {
  reports::Value::Array array;
  for (const double number : numbers) array.emplace_back(number);
  return array;
}

/// One row on one rank.
class Row {
 public:
  Row(const RankAtWork& rank, const DataParallelConfiguration& configuration)
      : rank_(rank), c_(configuration), context_(rank.session.context()) {}

  Outcome run() {
    const harness::launch::CallWatch::Scope scope(rank_.watch, c_.describe());
    // Ranks of a host share its cores.
    const int cores = rank_.session.device_properties().cores;
    if (context_.device().is_cpu()) set_num_threads(std::max(1, cores / std::max(1, rank_.local_size)));
    try {
      training_ = training_of(c_);
      measure();
    } catch (const Ended&) {
    }
    training_.reset();
    return outcome_;
  }

 private:
  /// A rank cannot go on, and all know.
  struct Ended {};

  void measure() {
    switch (c_.kind) {
      case Kind::timed:
        time();
        break;
      case Kind::verified:
        verify();
        break;
      case Kind::fitted:
        fit();
        break;
    }
  }

  std::unique_ptr<RankTraining> training_of(const DataParallelConfiguration& c) {
    return std::make_unique<RankTraining>(c, rank_.group, context_, seed(),
                                          [this](const std::function<void()>& work) { locally(work); });
  }

  void locally(const std::function<void()>& work) {
    rank_.watch.again();
    Vote mine;
    try {
      work();
    } catch (const OutOfMemory& e) {
      mine = {Status::oom, fmt::format("requested {}, free {}, limit {}", harness::format_size(e.requested()),
                                       harness::format_size(e.free()), harness::format_size(e.limit()))};
    } catch (const std::bad_alloc&) {
      mine = {Status::oom, "the host's memory ran out (std::bad_alloc)"};
    }
    if (!goes_on(mine)) throw Ended{};
  }

  [[nodiscard]] std::uint64_t seed() const { return rank_.session.settings().seed; }
  [[nodiscard]] bool leads() const { return rank_.control.rank() == 0; }

  /// True while the row goes on.
  bool goes_on(const Vote& mine) {
    const Vote all = harness::launch::vote(rank_.control, mine);
    outcome_.status = all.status;
    outcome_.reason = all.reason;
    return all.status == Status::ok;
  }

  void set_memory(const char* name, std::size_t bytes) {
    const std::vector<double> all = gather(rank_.control, static_cast<double>(bytes) / kMiB);
    outcome_.figures.set(std::string(name) + "_mem_mib", *std::max_element(all.begin(), all.end()));
    outcome_.figures.set(std::string(name) + "_mem_mib_of_ranks", list_of(all));
  }

  /// The ranks' medians.
  [[nodiscard]] std::vector<double> medians(const std::vector<double>& samples) {
    return gather(rank_.control, median_of(samples));
  }
  [[nodiscard]] static double median_of(const std::vector<double>& samples) {
    return harness::summarize(samples).median_ms;
  }

  bool check_alike() {
    const std::string own = training_->fingerprint();
    const std::vector<std::string> all = collectives::all_gather_bytes(rank_.control, own);
    outcome_.figures.set("weights_fingerprint", all.front());
    Vote mine;
    const double loss = training_->trainee().loss();
    if (own != all.front()) mine = {Status::mismatch, "its weights are not rank 0's after the steps"};
    if (!std::isfinite(loss)) mine = {Status::mismatch, "the loss is not finite"};
    outcome_.figures.set("loss", loss);
    return goes_on(mine);
  }

  void time() {
    reports::Object& f = outcome_.figures;
    const RankMemory memory = training_->measured_step();
    set_memory("init", memory.initialized);
    set_memory("before_update", memory.before_update);
    set_memory("after_update", memory.after_update);
    set_memory("peak", memory.peak);

    const data_parallel::GradientReducer& reducer = training_->reducer();
    const data_parallel::Update& update = training_->update();
    std::vector<double> exposed, of_update, busy;
    GroupPhase step;
    step.least_warm_up = context_.device().is_cuda() ? 1 : 0;
    step.run = [&] {
      training_->step(true);
      training_->wait();
    };
    step.timed = [&](std::int64_t calls) {
      double sum = 0;
      for (std::int64_t i = 0; i < calls; ++i) {
        sum += timed(
            rank_, [&] { training_->step(true); }, [&] { training_->wait(); });
        exposed.push_back(reducer.exposed_ms());
        of_update.push_back(update.exposed_ms());
        if (const auto ms = reducer.busy_ms()) busy.push_back(*ms);
      }
      return sum;
    };
    const harness::Samples samples = sample_together(rank_, step);
    add_statistics(f, "step", samples);
    if (rank_.session.settings().check && !check_alike()) return;
    const std::vector<double> busy_of_ranks = medians(busy);
    const auto of_gradients = data_parallel::split_waiting(gather(rank_.control, exposed));
    const auto of_weights = data_parallel::split_waiting(gather(rank_.control, of_update));
    const double exposed_ms = median_of(of_gradients.exposed_ms), update_exposed_ms = median_of(of_weights.exposed_ms);
    std::vector<double> skew = of_gradients.skew_ms;
    for (std::size_t i = 0; i < skew.size(); ++i) skew[i] += of_weights.skew_ms[i];

    // What of it is communication, and what a rank would take alone.
    std::vector<double> local;
    const double comm_ms = together([&] { training_->reducer().communicate(); });
    const double local_ms = together([&] { training_->step(false); }, &local);

    f.set("comm_ms", comm_ms);
    f.set("exposed_ms", exposed_ms + update_exposed_ms);
    f.set("update_exposed_ms", update_exposed_ms);
    f.set("rank_skew_ms", median_of(skew));
    f.set("hidden_share", comm_ms > 0 ? reports::Value(std::max(0.0, 1 - exposed_ms / comm_ms)) : reports::Value());
    f.set("comm_busy_ms", busy.empty() ? reports::Value()
                                       : reports::Value(*std::max_element(busy_of_ranks.begin(), busy_of_ranks.end())));
    f.set("local_step_ms", local_ms);
    f.set("local_step_ms_of_ranks", list_of(medians(local)));
    f.set("comm_calls", reducer.calls());
    f.set("comm_bytes", reducer.bytes());
    f.set("update_calls", update.calls());
    f.set("update_bytes", update.bytes());
    if (!leads()) return;
    const double step_ms = samples.statistics().median_ms;
    f.set("step_s", step_ms / 1e3);
    f.set("local_share", local_ms / step_ms);
    f.set("step_flops", step_flops(c_));
    f.set("step_tflops", step_flops(c_) / step_ms / 1e9);
    f.set("samples_per_s", static_cast<double>(c_.samples()) / (step_ms / 1e3));
    if (!c_.toy()) {
      f.set("tokens_per_s", static_cast<double>(c_.samples() * c_.model.context) / (step_ms / 1e3));
    }
  }

  /// The median of the slowest rank's times. `own`: this rank's, of a call each.
  template <class Work>
  double together(const Work& work, std::vector<double>* own = nullptr) {
    GroupPhase phase;
    phase.least_warm_up = context_.device().is_cuda() ? 1 : 0;
    const auto wait = [&] { training_->wait(); };
    phase.run = [&] {
      work();
      wait();
    };
    phase.timed = [&](std::int64_t calls) {
      double sum = 0;
      for (std::int64_t i = 0; i < calls; ++i) {
        const double ms = timed(rank_, work, wait);
        if (own != nullptr) own->push_back(ms);
        sum += ms;
      }
      return sum;
    };
    return sample_together(rank_, phase).statistics().median_ms;
  }

  /// Communication alone, by every size of bucket.
  void fit() {
    std::vector<data_parallel::CommunicationTime> times;
    double bytes = 0;
    reports::Value::Array sizes, calls, milliseconds;
    for (const std::uint64_t size : c_.bucket_list) {
      DataParallelConfiguration one = c_;
      one.kind = Kind::timed;
      one.bucket_bytes = size;
      training_.reset();
      training_ = training_of(one);
      const double ms = together([&] { training_->reducer().communicate(); });
      const auto count = static_cast<double>(training_->reducer().calls());
      bytes = static_cast<double>(training_->reducer().bytes());
      times.push_back({count, bytes, ms / 1e3});
      sizes.emplace_back(harness::format_exact_size(size));
      calls.emplace_back(training_->reducer().calls());
      milliseconds.emplace_back(ms);
    }
    reports::Object& f = outcome_.figures;
    f.set("fit_buckets", std::move(sizes));
    f.set("fit_calls", std::move(calls));
    f.set("fit_comm_ms_of_buckets", std::move(milliseconds));
    f.set("comm_bytes", static_cast<std::int64_t>(bytes));
    f.set("fit_formula",
          "comm = bytes / bandwidth + calls x overhead; best bucket = sqrt(bytes x bandwidth x overhead)");
    if (!leads()) return;
    const auto model = data_parallel::fit_overhead(times);
    f.set("call_overhead_us", model ? reports::Value(model->overhead_s * 1e6) : reports::Value());
    f.set("bandwidth_gbps", model ? reports::Value(model->bytes_per_s / 1e9) : reports::Value());
    f.set("predicted_best_bucket_mib",
          model ? reports::Value(model->best_bucket_bytes(bytes) / kMiB) : reports::Value());
  }

  void verify() {
    const std::int64_t steps = c_.verify_steps;
    for (std::int64_t k = 0; k < steps; ++k) {
      rank_.watch.again();
      training_->step_on(k);
    }
    rank_.watch.again();
    if (!check_alike()) return;
    // One process on all samples: rank 0, in step with the others, who wait for it.
    std::unique_ptr<data_parallel::Trainee> single;
    Vote mine;
    if (leads()) {
      try {
        single = make_trainee(c_, context_, true, false);
        single->initialize(seed());
        const data_parallel::GradientPlan plan(single->parameters(), size_of(single->gradient_dtype()));
        single_gradients_ = Buffer(context_, static_cast<std::size_t>(plan.elements()) * plan.element_bytes());
        fill_bytes(single_gradients_.data(), context_.device(), 0, single_gradients_.bytes(), context_.stream);
        single->reside_gradients(single_gradients_.data(), plan.places());
        single->prepare_training();
      } catch (const OutOfMemory&) {
        mine = {Status::oom, "one process's training on the whole batch does not fit beside the rank's"};
      }
    }
    if (!goes_on(mine)) return;
    std::vector<std::size_t> all;
    for (std::size_t i = 0; i < training_->trainee().parameters().size(); ++i) all.push_back(i);
    for (std::int64_t k = 0; k < steps; ++k) {
      if (leads()) {
        single->set_batch(seed(), k, 0, c_.samples());
        single->forward_backward(false);
        single->begin_update();
        single->update(all);
        single->end_update();
        synchronize(context_.stream);
      }
      rank_.watch.again();
      rank_.control.barrier();
    }
    if (leads()) mine = compare(*single);
    single.reset();
    single_gradients_ = Buffer();
    (void)goes_on(mine);
  }

  /// Largest differences by parameter, and whether one is too large.
  Vote compare(const data_parallel::Trainee& single) {
    const bool sgd = c_.optimizer == data_parallel::Optimizer::sgd;
    std::vector<double> differences;
    double worst = 0, largest_difference = 0;
    Vote mine;
    for (std::size_t i = 0; i < training_->trainee().parameters().size(); ++i) {
      const std::vector<float> here = training_->trainee().parameter(i), there = single.parameter(i);
      double difference = 0, largest = 0;
      for (std::size_t k = 0; k < here.size(); ++k) {
        const double d = std::abs(static_cast<double>(here[k]) - static_cast<double>(there[k]));
        difference = std::isnan(d) ? d : std::max(difference, d);
        largest = std::max(largest, std::abs(static_cast<double>(there[k])));
        if (std::isnan(difference)) break;
      }
      const double bound = sgd ? 1e-6 * largest : 1e-2 * c_.model.learning_rate * static_cast<double>(c_.verify_steps);
      const double share = bound > 0 ? difference / bound : difference > 0 ? INFINITY : 0.0;
      if (!(share <= 1) && mine.status == Status::ok) {
        mine = {Status::mismatch, fmt::format("param {} ({}): max_diff = {:.8e}, at most {:.2e} is rounding", i,
                                              training_->trainee().parameters()[i].name, difference, bound)};
      }
      worst = std::max(worst, share);
      largest_difference = std::max(largest_difference, difference);
      differences.push_back(difference);
    }
    outcome_.figures.set("max_diff", largest_difference);
    outcome_.figures.set("bound_used", worst);
    outcome_.figures.set("max_diffs", list_of(differences));
    return mine;
  }

  const RankAtWork& rank_;
  const DataParallelConfiguration& c_;
  Context context_;
  Outcome outcome_;
  std::unique_ptr<RankTraining> training_;
  Buffer single_gradients_;
};

}  // namespace

Outcome DataParallelWorker::measure(const RankAtWork& rank, std::size_t index) {
  WM_CHECK(index < configurations_.size(), "row " + std::to_string(index));
  return Row(rank, configurations_[index]).run();
}

}  // namespace warpmeter::e2e_bench
