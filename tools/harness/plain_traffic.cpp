#include "tools/harness/plain_traffic.hpp"

#include <chrono>
#include <limits>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/ceilings/bandwidth.hpp"
#include "kernels/runtime/allocator.hpp"

namespace warpmeter::harness {
namespace {

constexpr double kTrialSeconds = 0.1;  ///< after which no further round begins
constexpr int kTrialRounds = 3;
constexpr double kTrialTurnSeconds = 0.003;  ///< of a variant's samples in a round
constexpr double kTurnSeconds = 0.03;        ///< of a turn's samples
constexpr double kShareOfTime = 0.2;         ///< that turns take of a phase's time
constexpr std::size_t kEnough = 10;          ///< samples, after which no more are taken behind the phase
constexpr double kBehindSeconds = 0.1;       ///< or this time

class Stopwatch {
 public:
  [[nodiscard]] double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

class Plain {
 public:
  Plain(Sampler& sampler, const Settings& settings, std::unique_ptr<ceilings::TrafficWorkload> workload)
      : sampler_(sampler), settings_(settings), workload_(std::move(workload)) {
    settings_.warmup = 1;  // what another variant, or the phase, left in the caches is no state of its own
    settings_.steps.reset();
    settings_.max_noise = 0;
    pick_variant();
    settings_.max_time_s = kTurnSeconds;
  }

  /// A turn between samples of `phase`, when it is time for one.
  void take_turn(const Phase& phase) {
    if (spent_s_ > kShareOfTime * since_trial_.seconds()) return;
    const Stopwatch turn;
    take_samples();
    sampler_.warm_up(phase, 1);
    spent_s_ += turn.seconds();
  }

  /// Takes what is missing; the median in ms.
  [[nodiscard]] double finish() {
    const Stopwatch behind;
    while (samples_.milliseconds.empty() ||
           (samples_.milliseconds.size() < kEnough && behind.seconds() < kBehindSeconds)) {
      take_samples();
    }
    return samples_.statistics().median_ms;
  }

 private:
  [[nodiscard]] Phase plain_phase(int variant) {
    Phase phase;
    phase.enqueue = [this, variant] { workload_->enqueue(variant); };
    return phase;
  }

  void pick_variant() {
    settings_.max_time_s = kTrialTurnSeconds;
    const Stopwatch stopwatch;
    double least_ms = std::numeric_limits<double>::infinity();
    for (int round = 0; round < kTrialRounds && (round == 0 || stopwatch.seconds() < kTrialSeconds); ++round) {
      for (int variant = 0; variant < workload_->variants(); ++variant) {
        const double ms = sampler_.measure(plain_phase(variant), settings_).statistics().min_ms;
        if (ms < least_ms) std::tie(least_ms, variant_) = std::pair(ms, variant);
      }
    }
  }

  void take_samples() {
    const Samples more = sampler_.measure(plain_phase(variant_), settings_);
    samples_.milliseconds.insert(samples_.milliseconds.end(), more.milliseconds.begin(), more.milliseconds.end());
  }

  Sampler& sampler_;
  Settings settings_;
  std::unique_ptr<ceilings::TrafficWorkload> workload_;
  int variant_ = 0;
  Samples samples_;
  Stopwatch since_trial_;
  double spent_s_ = 0;
};

}  // namespace

BesidePlain measure_beside_plain(Session& session, const Phase& phase, std::size_t read_bytes,
                                 std::size_t written_bytes) {
  const Context context = session.context();
  Sampler& sampler = session.sampler();
  const auto make = [&]() -> std::unique_ptr<ceilings::TrafficWorkload> {
    try {
      return ceilings::make_traffic(context, read_bytes, written_bytes);
    } catch (const OutOfMemory&) {
      return nullptr;
    }
  };
  if (context.device().is_cuda()) {
    Samples samples = sampler.measure(phase);
    auto workload = make();
    if (!workload) return {std::move(samples)};
    return {std::move(samples), Plain(sampler, session.settings(), std::move(workload)).finish()};
  }
  auto workload = make();
  if (!workload) return {sampler.measure(phase)};
  Plain plain(sampler, session.settings(), std::move(workload));
  Phase in_turns = phase;
  in_turns.between = [&] { plain.take_turn(phase); };
  Samples samples = sampler.measure(in_turns);
  return {std::move(samples), plain.finish()};
}

}  // namespace warpmeter::harness
