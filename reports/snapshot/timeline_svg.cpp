#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <ostream>

#include "reports/detail/utf8.hpp"
#include "reports/snapshot/detail/palette.hpp"
#include "reports/snapshot/labels.hpp"
#include "reports/snapshot/phases.hpp"
#include "reports/snapshot/replay.hpp"
#include "reports/snapshot/timeline.hpp"

namespace warpmeter::reports::snapshot {
namespace {

constexpr double kWidth = 960, kPlotHeight = 340, kLeft = 78, kRight = 18, kTop = 64, kRow = 20;
constexpr std::size_t kColumns = 864;  // of the plot: kWidth - kLeft - kRight

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : reports::detail::printable(text)) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else {
      out += c;
    }
  }
  return out;
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f", value);
  std::string shortest(text);
  if (shortest.ends_with(".0")) shortest.resize(shortest.size() - 2);
  return shortest;
}

constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};

std::size_t unit_of(double bytes) {
  std::size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return unit;
}

std::string size_text(double bytes) {
  const std::size_t unit = unit_of(bytes);
  const double value = bytes / std::pow(1024.0, static_cast<double>(unit));
  char text[32];
  std::snprintf(text, sizeof(text), "%.*f %s",
                unit == 0 || value >= 1000 ? 0
                : value >= 100             ? 1
                                           : 2,
                value, kUnits[unit]);
  return text;
}

class Picture {
 public:
  Picture(const Snapshot& snapshot, std::size_t device, std::ostream& out, std::uint64_t scale_to)
      : snapshot_(snapshot),
        device_(device),
        labels_(snapshot),
        levels_(replay(snapshot, device)),
        out_(out),
        scale_to_(static_cast<double>(scale_to)) {}

  void run(const std::string& title) {
    gather();
    const auto phases = phases_of(snapshot_, device_);
    std::uint32_t rows = 0;
    for (const Phase& phase : phases) rows = std::min<std::uint32_t>(3, std::max(rows, phase.depth + 1));
    const double height = kTop + kPlotHeight + 6 + kRow * rows + 26;
    out_ << "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " << number(kWidth) << ' ' << number(height)
         << "\" width=\"" << number(kWidth) << "\" height=\"" << number(height)
         << "\" font-family=\"system-ui, -apple-system, 'Segoe UI', Roboto, Arial, sans-serif\" font-size=\"12\" "
            "role=\"img\" aria-label=\""
         << escaped(title) << "\">\n<style>\n"
         << ".ground { fill: #ffffff } .text { fill: #1c2128 } .quiet { fill: #57606a } .grid { stroke: #e6e9ed } "
            ".line { stroke: #d0d7de } .panel { fill: #f5f6f8; stroke: #d0d7de } .reserved { stroke: #57606a } "
            ".halo { stroke: #ffffff }\n"
         << "@media (prefers-color-scheme: dark) { .ground { fill: #12161c } .text { fill: #e6eaf0 } .quiet { fill: "
            "#9da7b3 } .grid { stroke: #252c35 } .line { stroke: #343c47 } .panel { fill: #1b212a; stroke: #343c47 } "
            ".reserved { stroke: #9da7b3 } .halo { stroke: #12161c } }\n</style>\n"
         << "<rect class=\"ground\" width=\"100%\" height=\"100%\"/>\n<text class=\"text\" x=\"" << number(kLeft)
         << "\" y=\"22\" font-size=\"15\" font-weight=\"600\">" << escaped(title) << "</text>\n";
    legend();
    axis();
    areas();
    reserved_line();
    peak_mark();
    phase_rows(phases, rows);
    const double y = kTop + kPlotHeight + 6 + kRow * rows + 16;
    for (int i = 0; i <= 4; ++i) {
      const double x = kLeft + static_cast<double>(kColumns) * i / 4;
      out_ << "<text class=\"quiet\" x=\"" << number(x) << "\" y=\"" << number(y) << "\" text-anchor=\""
           << (i == 4 ? "end" : "middle") << "\">" << (count_ * static_cast<std::size_t>(i) / 4) << "</text>\n";
    }
    out_ << "<text class=\"quiet\" x=\"" << number(kLeft - 8) << "\" y=\"" << number(y)
         << "\" text-anchor=\"end\" dx=\"-10\">events</text>\n</svg>\n";
  }

 private:
  /// Levels by category at the moment of each column that has the most allocated.
  void gather() {
    count_ = levels_.after.size();
    const auto level_at = [&](std::size_t i) -> const Level& { return i == 0 ? levels_.before : levels_.after[i - 1]; };
    columns_.resize(kColumns);
    for (std::size_t x = 0; x < kColumns; ++x) {
      const std::size_t begin = x * (count_ + 1) / kColumns;
      const std::size_t end = std::max(begin + 1, (x + 1) * (count_ + 1) / kColumns);
      columns_[x] = begin;
      for (std::size_t i = begin; i < end; ++i) {
        if (level_at(i).allocated > level_at(columns_[x]).allocated) columns_[x] = i;
      }
      largest_ = std::max({largest_, static_cast<double>(level_at(columns_[x]).allocated),
                           static_cast<double>(level_at(columns_[x]).reserved)});
      reserved_.push_back(static_cast<double>(level_at(columns_[x]).reserved));
    }
    largest_ = std::max(1.04 * largest_, scale_to_);
    // One walk over the events, stopping at each column.
    const auto& categories = labels_.categories();
    std::vector<double> now(categories.size(), 0);
    const auto place = [&](const Allocation& allocation) {
      return static_cast<std::size_t>(std::find(categories.begin(), categories.end(), labels_.category(allocation)) -
                                      categories.begin());
    };
    for (const Allocation& allocation : levels_.allocations) {
      if (allocation.begin == Allocation::kBefore) now[place(allocation)] += static_cast<double>(allocation.size);
    }
    by_column_.reserve(kColumns);
    std::size_t done = 0;
    for (std::size_t x = 0; x < kColumns; ++x) {
      for (; done < columns_[x]; ++done) {
        const std::uint32_t which = levels_.of_event[done];
        if (which == Replay::kNone) continue;
        const Allocation& allocation = levels_.allocations[which];
        if (allocation.begin == done) now[place(allocation)] += static_cast<double>(allocation.size);
        if (allocation.end == done) now[place(allocation)] -= static_cast<double>(allocation.size);
      }
      by_column_.push_back(now);
    }
    for (std::size_t c = 0; c < categories.size(); ++c) {
      colors_.emplace_back(detail::color_of(labels_.text(categories[c]), spare_));
      used_.push_back(std::any_of(by_column_.begin(), by_column_.end(), [&](const auto& each) { return each[c] > 0; }));
    }
  }

  [[nodiscard]] double y_of(double bytes) const { return kTop + kPlotHeight * (1 - bytes / largest_); }

  void legend() {
    double x = kLeft;
    const auto entry = [&](const std::string& mark, std::string_view text) {
      out_ << "<g transform=\"translate(" << number(x) << " 34)\">" << mark
           << "<text class=\"quiet\" x=\"17\" y=\"10\">" << escaped(text) << "</text></g>\n";
      x += 36 + 6.6 * static_cast<double>(reports::detail::code_points(text));
    };
    for (std::size_t c = 0; c < colors_.size(); ++c) {
      if (!used_[c]) continue;
      std::string mark = "<rect width=\"11\" height=\"11\" rx=\"2\" fill=\"";
      entry(mark.append(colors_[c]).append("\"/>"), labels_.text(labels_.categories()[c]));
    }
    entry("<line class=\"reserved\" x2=\"12\" y1=\"6\" y2=\"6\" stroke-width=\"1.5\" stroke-dasharray=\"4 3\"/>",
          "reserved");
  }

  void axis() {
    const std::size_t unit = unit_of(largest_);
    const double scale = std::pow(1024.0, static_cast<double>(unit));
    const double rough = largest_ / scale / 5;
    const double power = std::pow(10.0, std::floor(std::log10(rough)));
    double step = 10 * power;
    for (const double factor : {5.0, 2.5, 2.0, 1.0}) {
      if (factor * power >= rough) step = factor * power;
    }
    for (double value = 0; value * scale <= largest_; value += step) {
      const double y = y_of(value * scale);
      char text[32];
      std::snprintf(text, sizeof(text), "%g %s", value, kUnits[unit]);
      out_ << "<line class=\"grid\" x1=\"" << number(kLeft) << "\" x2=\"" << number(kWidth - kRight) << "\" y1=\""
           << number(y) << "\" y2=\"" << number(y) << "\"/><text class=\"quiet\" x=\"" << number(kLeft - 8) << "\" y=\""
           << number(y + 4) << "\" text-anchor=\"end\">" << text << "</text>\n";
    }
  }

  /// A step line over the columns, without the points that change nothing that is seen.
  template <class Value>
  void steps(Value&& value, bool backwards) {
    const auto x_of = [](std::size_t x) { return kLeft + static_cast<double>(x); };
    std::size_t x = 0;
    std::vector<std::array<double, 3>> runs;  // from, to, y
    while (x < kColumns) {
      std::size_t end = x + 1;
      const std::string y = number(y_of(value(x)));
      while (end < kColumns && (value(end) == value(x) || number(y_of(value(end))) == y)) ++end;
      runs.push_back({x_of(x), x_of(end), y_of(value(x))});
      x = end;
    }
    if (backwards) std::reverse(runs.begin(), runs.end());
    for (const auto& [from, to, y] : runs) {
      out_ << number(backwards ? to : from) << ',' << number(y) << ' ' << number(backwards ? from : to) << ','
           << number(y) << ' ';
    }
  }

  void areas() {
    std::vector<double> below(kColumns, 0), above(kColumns, 0);
    for (std::size_t c = 0; c < colors_.size(); ++c) {
      if (!used_[c]) continue;
      for (std::size_t x = 0; x < kColumns; ++x) above[x] = below[x] + by_column_[x][c];
      out_ << "<polygon fill=\"" << colors_[c] << "\" points=\"";
      steps([&](std::size_t x) { return above[x]; }, false);
      steps([&](std::size_t x) { return below[x]; }, true);
      out_ << "\"><title>" << escaped(labels_.text(labels_.categories()[c])) << "</title></polygon>\n";
      below = above;
    }
  }

  void reserved_line() {
    out_ << "<polyline class=\"reserved\" fill=\"none\" stroke-width=\"1.5\" stroke-dasharray=\"5 4\" points=\"";
    steps([&](std::size_t x) { return reserved_[x]; }, false);
    out_ << "\"/>\n";
  }

  void peak_mark() {
    if (levels_.peak.allocated == 0) return;
    const std::size_t level = levels_.peak_event == Replay::kNone ? 0 : std::size_t{levels_.peak_event} + 1;
    const double x =
        kLeft + (static_cast<double>(level) + 0.5) * static_cast<double>(kColumns) / static_cast<double>(count_ + 1);
    const double y = y_of(static_cast<double>(levels_.peak.allocated));
    const char* const anchor = x < kLeft + 90 ? "start" : x > kWidth - kRight - 90 ? "end" : "middle";
    out_ << "<circle class=\"text halo\" stroke-width=\"2\" cx=\"" << number(x) << "\" cy=\"" << number(y)
         << "\" r=\"4.5\"/><text class=\"text halo\" paint-order=\"stroke\" stroke-width=\"4\" "
            "stroke-linejoin=\"round\" "
            "font-weight=\"600\" x=\""
         << number(x) << "\" y=\"" << number(std::max(kTop + 6, y - 12)) << "\" text-anchor=\"" << anchor << "\">peak "
         << size_text(static_cast<double>(levels_.peak.allocated)) << "</text>\n";
  }

  void phase_rows(const std::vector<Phase>& phases, std::uint32_t rows) {
    std::vector<double> last(rows, -1);
    for (const Phase& phase : phases) {
      if (phase.depth >= rows) continue;
      const double scale = static_cast<double>(kColumns) / static_cast<double>(count_ + 1);
      // What happens within a phase is seen from the level after its first event on.
      const double from = kLeft + (phase.begin + 1) * scale;
      const double to = std::min(kLeft + static_cast<double>(kColumns), kLeft + (phase.end + 1) * scale);
      if (to - from < 1 && from - last[phase.depth] < 1) continue;
      last[phase.depth] = to;
      const double width = std::max(1.0, to - from);
      const double y = kTop + kPlotHeight + 6 + kRow * phase.depth;
      out_ << "<rect class=\"panel\" x=\"" << number(from) << "\" y=\"" << number(y) << "\" width=\"" << number(width)
           << "\" height=\"16\"/>";
      const std::string_view name = snapshot_.text(phase.name);
      const auto fits = static_cast<std::size_t>(std::max(0.0, (width - 8) / 6.8));
      if (fits >= 3) {
        std::string text(name);
        if (reports::detail::code_points(text) > fits) text = text.substr(0, fits - 1) + "…";
        out_ << "<text class=\"text\" x=\"" << number(from + 4) << "\" y=\"" << number(y + 12) << "\">" << escaped(text)
             << "</text>";
      }
      out_ << '\n';
    }
  }

  const Snapshot& snapshot_;
  std::size_t device_;
  Labels labels_;
  Replay levels_;
  std::ostream& out_;
  double scale_to_;
  std::size_t count_ = 0;
  std::size_t spare_ = 0;
  double largest_ = 1;
  std::vector<std::size_t> columns_;  ///< level shown in each column
  std::vector<std::vector<double>> by_column_;
  std::vector<double> reserved_;
  std::vector<std::string_view> colors_;
  std::vector<bool> used_;
};

}  // namespace

void write_timeline_svg(const Snapshot& snapshot, const std::string& title, std::ostream& out, std::uint64_t scale_to) {
  std::size_t device = 0;
  for (std::size_t i = 1; i < snapshot.traces.size(); ++i) {
    if (snapshot.traces[i].size() > snapshot.traces[device].size()) device = i;
  }
  Picture(snapshot, device, out, scale_to).run(title);
}

}  // namespace warpmeter::reports::snapshot
