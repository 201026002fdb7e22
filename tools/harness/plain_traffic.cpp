#include "tools/harness/plain_traffic.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <span>
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
constexpr double kTurnSeconds = 0.01;        ///< of a turn's samples
constexpr std::size_t kEnough = 10;          ///< turns, or samples where there are none: more as time allows
constexpr double kShareOfTime = 0.2;         ///< that further turns take of a phase's time
constexpr double kBehindSeconds = 0.1;       ///< after which no further samples are taken without turns
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
    since_trial_ = {};
  }

  /// After each sample of `phase` but the last: a turn, when it is time for one.
  void take_turn(const Phase& phase) {
    ++phase_samples_;
    if (turns_.size() >= kEnough && spent_s_ > kShareOfTime * since_trial_.seconds()) return;
    const Stopwatch turn;
    turns_.push_back({phase_samples_, summarize(take_samples()).median_ms});
    if (settings_.warmup > 0) sampler_.warm_up(phase, 1);
    spent_s_ += turn.seconds();
  }

  /// Plain code's time in those of the phase, of which `samples_ms` are all samples: the median over the turns, each
  /// beside the samples since the turn before and up to the next. Without turns the medians of both.
  [[nodiscard]] double share_of(std::span<const double> samples_ms) {
    if (turns_.empty()) return summarize(samples_behind()).median_ms / summarize(samples_ms).median_ms;
    std::vector<double> shares;
    for (std::size_t turn = 0; turn < turns_.size(); ++turn) {
      const std::size_t begin = turn == 0 ? 0 : turns_[turn - 1].phase_samples;
      const std::size_t end = turn + 1 < turns_.size() ? turns_[turn + 1].phase_samples : samples_ms.size();
      shares.push_back(turns_[turn].ms / summarize(samples_ms.subspan(begin, end - begin)).median_ms);
    }
    return summarize(shares).median_ms;
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

  [[nodiscard]] std::vector<double> take_samples() {
    return sampler_.measure(plain_phase(variant_), settings_).milliseconds;
  }

  [[nodiscard]] std::vector<double> samples_behind() {
    const Stopwatch behind;
    std::vector<double> samples_ms;
    while (samples_ms.empty() || (samples_ms.size() < kEnough && behind.seconds() < kBehindSeconds)) {
      const std::vector<double> more = take_samples();
      samples_ms.insert(samples_ms.end(), more.begin(), more.end());
    }
    return samples_ms;
  }

  struct Turn {
    std::size_t phase_samples;  ///< taken before it
    double ms;
  };

  Sampler& sampler_;
  Settings settings_;
  std::unique_ptr<ceilings::TrafficWorkload> workload_;
  int variant_ = 0;
  std::size_t phase_samples_ = 0;
  std::vector<Turn> turns_;
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
  BesidePlain found;
  if (context.device().is_cuda()) {
    found.samples = sampler.measure(phase);
    auto workload = make();
    if (!workload) return found;
    found.plain_share = Plain(sampler, session.settings(), std::move(workload)).share_of(found.samples.milliseconds);
    return found;
  }
  auto workload = make();
  if (!workload) {
    found.samples = sampler.measure(phase);
    return found;
  }
  Plain plain(sampler, session.settings(), std::move(workload));
  Phase in_turns = phase;
  in_turns.between = [&] { plain.take_turn(phase); };
  found.samples = sampler.measure(in_turns);
  found.plain_share = plain.share_of(found.samples.milliseconds);
  return found;
}

}  // namespace warpmeter::harness
