#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "tools/harness/settings.hpp"
#include "tools/harness/statistics.hpp"

namespace warpmeter::harness::detail {

/// When a phase has been sampled enough.
///
/// With `steps`: at exactly that many samples. Otherwise when the noise is at most max_noise, but not on the first
/// samples that happen to agree: at least 5 samples over a quarter of max_time, or 30 over a twentieth of it, so that a
/// clock that is still ramping up or one quiet moment does not decide. Or when max_time has passed.
class StoppingRule {
 public:
  explicit StoppingRule(const Settings& settings);

  /// Asked after every sample; `elapsed_s` since sampling began, whatever was done in between.
  [[nodiscard]] std::optional<StopReason> after(std::span<const double> samples_ms, double elapsed_s);

  static constexpr std::size_t kFewSamples = 5;
  static constexpr std::size_t kManySamples = 30;
  static constexpr double kFewSamplesShare = 0.25;   ///< of max_time that 5 samples must span
  static constexpr double kManySamplesShare = 0.05;  ///< of max_time that 30 samples must span

 private:
  [[nodiscard]] double noise(std::span<const double> samples_ms);

  std::optional<std::int64_t> steps_;
  double max_noise_;
  double max_time_s_;
  std::size_t next_look_ = kFewSamples;
  std::vector<double> sorted_;  ///< reused
};

}  // namespace warpmeter::harness::detail
