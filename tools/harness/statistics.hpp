#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "reports/model.hpp"

namespace warpmeter::harness {

/// Why sampling ended.
enum class StopReason : std::uint8_t { steps, noise, max_time, interrupted };
[[nodiscard]] std::string_view name(StopReason reason) noexcept;

/// A set of samples in milliseconds. Percentiles by nearest rank; noise is IQR / median with the quartiles by the same
/// rank rule, and 0 when the quartiles are equal, whatever the median. All NaN (written as null) when n is 0; stdev
/// (of a sample: n - 1) NaN when n is 1. Equal samples have exactly their value as mean, and stdev 0.
struct Statistics {
  static constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  std::size_t n = 0;
  double min_ms = kNone, median_ms = kNone, mean_ms = kNone, p95_ms = kNone, p99_ms = kNone, max_ms = kNone,
         stdev_ms = kNone, noise = kNone;
};

/// Nearest rank: the smallest sample such that at least q of all samples are at or below it; q in (0, 1]. NaN for no
/// samples.
[[nodiscard]] double percentile(std::span<const double> sorted, double q);
/// The middle sample; the mean of the middle two when their number is even. NaN for no samples.
[[nodiscard]] double median(std::span<const double> sorted);
/// In any order; each must be finite.
[[nodiscard]] Statistics summarize(std::span<const double> samples_ms);

struct Samples {
  std::vector<double> milliseconds;  ///< of one call each, in the order taken
  StopReason stop = StopReason::steps;
  double clock_mhz = 0;       ///< mean SM clock while sampling; 0 where it cannot be known
  std::size_t discarded = 0;  ///< samples thrown away because the clock was throttled
  /// Calls that each sample is the mean of: above 1 only where one call is too short for the clock.
  std::int64_t calls_per_sample = 1;
  [[nodiscard]] Statistics statistics() const { return summarize(milliseconds); }
};

/// `fwd` gives fwd_ms (the median), fwd_mean_ms, fwd_min_ms, fwd_p95_ms, fwd_p99_ms, fwd_stdev_ms, fwd_noise, fwd_n,
/// fwd_stop, and fwd_samples_ms (the writer drops it unless --samples). Where there is something to say, also
/// fwd_clock_mhz (the clock is known), fwd_discarded (samples were thrown away) and fwd_calls_per_sample (above 1).
void add_statistics(reports::Object& figures, std::string_view phase, const Samples& samples);

}  // namespace warpmeter::harness
