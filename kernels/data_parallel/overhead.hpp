#pragma once

#include <optional>
#include <span>

namespace warpmeter::data_parallel {

/// What collective calls cost: each `overhead_s`, and each byte 1 / `bytes_per_s`.
///
/// With s bytes in n buckets, and the last bucket the one that no computation hides, a step is longer by
/// s / (n w) + n o (w: bytes_per_s, o: overhead_s). The best n is sqrt(s / (w o)), the best bucket sqrt(s w o) bytes.
struct OverheadModel {
  double overhead_s = 0;
  double bytes_per_s = 0;

  [[nodiscard]] double best_bucket_bytes(double bytes) const;
  [[nodiscard]] double step_overhead_s(double bytes, double buckets) const;
};

/// What one way of cutting the same gradients took: all its calls one after the other and nothing beside them.
struct CommunicationTime {
  double calls = 0, bytes = 0, seconds = 0;
};

/// seconds = bytes / w + calls o by least squares of the relative errors. None where the numbers of calls do not
/// differ, or where they say that calls or bytes are for nothing.
[[nodiscard]] std::optional<OverheadModel> fit_overhead(std::span<const CommunicationTime> times);

}  // namespace warpmeter::data_parallel
