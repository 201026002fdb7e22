#include "tools/harness/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/runtime/check.hpp"

namespace warpmeter::harness {
namespace {

/// Adds with the rounding error of each step carried along (Neumaier), so that millions of samples cost no digits.
class CompensatedSum {
 public:
  void add(double value) {
    const double next = sum_ + value;
    error_ += std::abs(sum_) >= std::abs(value) ? (sum_ - next) + value : (value - next) + sum_;
    sum_ = next;
  }
  [[nodiscard]] double value() const { return sum_ + error_; }

 private:
  double sum_ = 0;
  double error_ = 0;
};

}  // namespace

std::string_view name(StopReason reason) noexcept {
  switch (reason) {
    case StopReason::steps:
      return "steps";
    case StopReason::noise:
      return "noise";
    case StopReason::max_time:
      return "max_time";
    case StopReason::interrupted:
      return "interrupted";
  }
  return "";
}

double percentile(std::span<const double> sorted, double q) {
  WM_CHECK(q > 0 && q <= 1, "q " + std::to_string(q));
  if (sorted.empty()) return Statistics::kNone;
  // q has no exact binary form: without the allowance 0.07 of 100 would be rank 8.
  const double allowance = 1e-9;
  const double rank = std::ceil(q * static_cast<double>(sorted.size()) - allowance);
  const auto index = static_cast<std::size_t>(std::max(rank, 1.0)) - 1;
  return sorted[std::min(index, sorted.size() - 1)];
}

double median(std::span<const double> sorted) {
  if (sorted.empty()) return Statistics::kNone;
  const std::size_t half = sorted.size() / 2;
  if (sorted.size() % 2 == 1) return sorted[half];
  return sorted[half - 1] + (sorted[half] - sorted[half - 1]) / 2;
}

Statistics summarize(std::span<const double> samples_ms) {
  Statistics result;
  result.n = samples_ms.size();
  if (samples_ms.empty()) return result;
  std::vector<double> sorted(samples_ms.begin(), samples_ms.end());
  for (const double sample : sorted) WM_CHECK(std::isfinite(sample), "sample " + std::to_string(sample));
  std::sort(sorted.begin(), sorted.end());

  result.min_ms = sorted.front();
  result.max_ms = sorted.back();
  result.median_ms = median(sorted);
  result.p95_ms = percentile(sorted, 0.95);
  result.p99_ms = percentile(sorted, 0.99);
  const double iqr = percentile(sorted, 0.75) - percentile(sorted, 0.25);
  result.noise = iqr == 0 ? 0 : iqr / result.median_ms;

  // Distances from the smallest sample: equal samples then give an exact mean and no deviation.
  const auto n = static_cast<double>(sorted.size());
  CompensatedSum distances;
  for (const double sample : sorted) distances.add(sample - result.min_ms);
  const double mean_distance = distances.value() / n;
  result.mean_ms = result.min_ms + mean_distance;
  if (sorted.size() > 1) {
    CompensatedSum squares;
    for (const double sample : sorted) {
      const double deviation = (sample - result.min_ms) - mean_distance;
      squares.add(deviation * deviation);
    }
    result.stdev_ms = std::sqrt(squares.value() / (n - 1));
  }
  return result;
}

void add_statistics(reports::Object& figures, std::string_view phase, const Samples& samples) {
  const Statistics statistics = samples.statistics();
  const std::string prefix = std::string(phase) + "_";
  figures.set(prefix + "ms", statistics.median_ms);
  figures.set(prefix + "mean_ms", statistics.mean_ms);
  figures.set(prefix + "min_ms", statistics.min_ms);
  figures.set(prefix + "p95_ms", statistics.p95_ms);
  figures.set(prefix + "p99_ms", statistics.p99_ms);
  figures.set(prefix + "stdev_ms", statistics.stdev_ms);
  figures.set(prefix + "noise", statistics.noise);
  figures.set(prefix + "n", static_cast<std::int64_t>(statistics.n));
  figures.set(prefix + "stop", name(samples.stop));
  figures.set(prefix + "samples_ms", samples.milliseconds);
  if (samples.clock_mhz > 0) figures.set(prefix + "clock_mhz", samples.clock_mhz);
  if (samples.discarded > 0) figures.set(prefix + "discarded", static_cast<std::int64_t>(samples.discarded));
  if (samples.calls_per_sample > 1) figures.set(prefix + "calls_per_sample", samples.calls_per_sample);
}

}  // namespace warpmeter::harness
