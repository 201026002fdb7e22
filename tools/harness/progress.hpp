#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tools/harness/progress_console.hpp"

namespace warpmeter::harness {

/// How long a finished row took and how much work it was predicted to be.
struct FinishedRow {
  double flops = 0;
  double seconds = 0;
};

/// Seconds that rows of `flops_left` will take, from those that are done: seconds = a + b * FLOPs with a, b >= 0 by
/// least squares (a is set-up and the sampling time that adaptive stopping spends on any row). None before the first.
[[nodiscard]] std::optional<double> estimate_seconds(std::span<const FinishedRow> done,
                                                     std::span<const double> flops_left);

/// "7 s", "3 min 05 s", "2 h 10 min".
[[nodiscard]] std::string format_duration(double seconds);

/// The bar of a sweep: count, elapsed and remaining time and what runs now. Drawn between rows only, never while
/// something is timed.
class Progress {
 public:
  /// `flops`: one predicted amount for each row that will run.
  Progress(ProgressConsole& console, std::vector<double> flops);
  void start(std::string_view label);
  void finish(double seconds);

  /// The text of the bar as it is shown.
  [[nodiscard]] std::string text(std::string_view label, double elapsed_s) const;

 private:
  ProgressConsole& console_;
  std::vector<double> flops_;
  std::vector<FinishedRow> done_;
  double begin_s_;
};

}  // namespace warpmeter::harness
