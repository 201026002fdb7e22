#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reports/model.hpp"

namespace warpmeter::harness {

/// Why sampling ended.
enum class StopReason : std::uint8_t { steps, noise, max_time, interrupted };
[[nodiscard]] std::string_view name(StopReason reason) noexcept;

/// A set of samples in milliseconds. Percentiles by nearest rank; noise is IQR / median with the quartiles by the same
/// rank rule. All NaN (written as null) when n is 0; stdev NaN when n is 1.
struct Statistics {
  std::size_t n = 0;
  double min_ms, median_ms, mean_ms, p95_ms, p99_ms, max_ms, stdev_ms, noise;
};

/// Nearest rank: the smallest sample such that at least q of all samples are at or below it; q in (0, 1].
/// The median of an even number of samples is the mean of the middle two.
[[nodiscard]] double percentile(std::span<const double> sorted, double q);
[[nodiscard]] Statistics summarize(std::span<const double> samples_ms);

struct Samples {
  std::vector<double> milliseconds;  ///< in the order taken
  StopReason stop = StopReason::steps;
  double clock_mhz = 0;       ///< mean SM clock while sampling; 0 where it cannot be known
  std::size_t discarded = 0;  ///< samples thrown away because the clock was throttled
  [[nodiscard]] Statistics statistics() const { return summarize(milliseconds); }
};

/// `fwd` gives fwd_ms (the median), fwd_mean_ms, fwd_min_ms, fwd_p95_ms, fwd_p99_ms, fwd_stdev_ms, fwd_noise, fwd_n,
/// fwd_stop, and fwd_samples_ms (the writer drops it unless --samples).
void add_statistics(reports::Object& figures, std::string_view phase, const Samples& samples);

}  // namespace warpmeter::harness
