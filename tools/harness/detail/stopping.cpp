#include "tools/harness/detail/stopping.hpp"

#include <algorithm>

namespace warpmeter::harness::detail {

StoppingRule::StoppingRule(const Settings& settings)
    : steps_(settings.steps), max_noise_(settings.max_noise), max_time_s_(settings.max_time_s) {}

std::optional<StopReason> StoppingRule::after(std::span<const double> samples_ms, double elapsed_s) {
  const std::size_t n = samples_ms.size();
  if (steps_) {
    if (n >= static_cast<std::size_t>(std::max<std::int64_t>(*steps_, 1))) return StopReason::steps;
    return std::nullopt;
  }
  // The noise is looked at in growing steps, so that sorting stays a small part of the work however short the samples.
  const bool spans_enough = (n >= kFewSamples && elapsed_s >= kFewSamplesShare * max_time_s_) ||
                            (n >= kManySamples && elapsed_s >= kManySamplesShare * max_time_s_);
  if (spans_enough && n >= next_look_) {
    next_look_ = n + std::max<std::size_t>(1, n / 16);
    if (noise(samples_ms) <= max_noise_) return StopReason::noise;
  }
  if (elapsed_s >= max_time_s_) return StopReason::max_time;
  return std::nullopt;
}

double StoppingRule::noise(std::span<const double> samples_ms) {
  sorted_.assign(samples_ms.begin(), samples_ms.end());
  std::sort(sorted_.begin(), sorted_.end());
  const double iqr = percentile(sorted_, 0.75) - percentile(sorted_, 0.25);
  return iqr == 0 ? 0 : iqr / median(sorted_);
}

}  // namespace warpmeter::harness::detail
