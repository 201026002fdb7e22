#include "tools/harness/plain_traffic.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/ceilings/bandwidth.hpp"
#include "kernels/runtime/allocator.hpp"

namespace warpmeter::harness {
namespace {

constexpr double kTrialSeconds = 0.2;        ///< after which no further round begins
constexpr int kTrialRounds = 5;              ///< since the noise of one sample may be more than variants differ by
constexpr double kPromising = 1.25;          ///< of the least time: who takes longer is out of further rounds
constexpr double kTrialTurnSeconds = 0.003;  ///< of a variant's samples in a round
constexpr double kTurnSeconds = 0.03;        ///< of a turn's samples
constexpr double kShareOfTime = 0.2;         ///< that turns take of a phase's time
constexpr std::size_t kEnough = 10;          ///< samples, after which no more are taken behind the phase
constexpr double kBehindSeconds = 0.1;       ///< or this time
constexpr double kPastCachesMs = 3;          ///< a call that moves more than caches hold takes that long at least

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
    settings_.warmup = 1;  // after another variant, or the phase, the caches have not what a call leaves there
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
    if (settings_.warmup > 0) sampler_.warm_up(phase, 1);
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
    std::vector<double> least_ms(static_cast<std::size_t>(workload_->variants()), 0);
    double best_ms = std::numeric_limits<double>::infinity();
    for (int round = 0; round < kTrialRounds && (round == 0 || stopwatch.seconds() < kTrialSeconds); ++round) {
      for (std::size_t variant = 0; variant < least_ms.size(); ++variant) {
        if (least_ms[variant] > kPromising * best_ms) continue;
        const int index = static_cast<int>(variant);
        const double ms = sampler_.measure(plain_phase(index), settings_).statistics().min_ms;
        if (ms >= kPastCachesMs) settings_.warmup = 0;
        least_ms[variant] = round == 0 ? ms : std::min(ms, least_ms[variant]);
        if (least_ms[variant] < best_ms) {
          best_ms = least_ms[variant];
          variant_ = index;
        }
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
