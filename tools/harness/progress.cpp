#include "tools/harness/progress.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>

#include <fmt/core.h>

namespace warpmeter::harness {
namespace {

constexpr std::size_t kBarWidth = 24;

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

std::optional<double> estimate_seconds(std::span<const FinishedRow> done, std::span<const double> flops_left) {
  if (done.empty()) return std::nullopt;
  const double n = static_cast<double>(done.size());
  double mean_flops = 0, mean_seconds = 0;
  for (const FinishedRow& row : done) {
    mean_flops += row.flops / n;
    mean_seconds += row.seconds / n;
  }
  double covariance = 0, variance = 0;
  for (const FinishedRow& row : done) {
    covariance += (row.flops - mean_flops) * (row.seconds - mean_seconds);
    variance += (row.flops - mean_flops) * (row.flops - mean_flops);
  }
  double slope = variance > 0 ? std::max(0.0, covariance / variance) : 0.0;
  double fixed = mean_seconds - slope * mean_flops;
  if (fixed < 0) {  // a line through the origin fits better than a negative set-up time
    fixed = 0;
    slope = mean_flops > 0 ? mean_seconds / mean_flops : 0.0;
  }
  double seconds = 0;
  for (const double flops : flops_left) seconds += fixed + slope * flops;
  return seconds;
}

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  const auto whole = static_cast<long long>(std::llround(std::min(seconds, 1e9)));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
}

Progress::Progress(ProgressConsole& console, std::vector<double> flops)
    : console_(console), flops_(std::move(flops)), begin_s_(now_s()) {}

std::string Progress::text(std::string_view label, double elapsed_s) const {
  const std::size_t total = flops_.size();
  const std::size_t filled = total == 0 ? kBarWidth : done_.size() * kBarWidth / total;
  std::string text = fmt::format("[{}{}] {}/{}  {} elapsed", std::string(filled, '#'),
                                 std::string(kBarWidth - filled, '.'), done_.size(), total, format_duration(elapsed_s));
  const auto left = std::span<const double>(flops_).subspan(std::min(done_.size(), total));
  if (const auto seconds = estimate_seconds(done_, left)) text += fmt::format(", {} left", format_duration(*seconds));
  if (!label.empty()) text += fmt::format("  {}", label);
  return text;
}

void Progress::start(std::string_view label) {
  if (console_.is_terminal()) console_.show_status(text(label, now_s() - begin_s_));
}

void Progress::finish(double seconds) {
  if (done_.size() < flops_.size()) done_.push_back({flops_[done_.size()], seconds});
}

}  // namespace warpmeter::harness
