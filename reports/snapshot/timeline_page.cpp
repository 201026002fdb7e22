#include <algorithm>
#include <ostream>
#include <unordered_map>

#include "reports/detail/json_text.hpp"
#include "reports/detail/utf8.hpp"
#include "reports/snapshot/detail/timeline_assets.hpp"
#include "reports/snapshot/labels.hpp"
#include "reports/snapshot/phases.hpp"
#include "reports/snapshot/replay.hpp"
#include "reports/snapshot/timeline.hpp"

namespace warpmeter::reports::snapshot {
namespace {

/// JSON that may stand within a script element: no "<", which could end it.
class Json {
 public:
  explicit Json(std::ostream& out) : out_(out) {}
  ~Json() { flush(); }
  Json(const Json&) = delete;
  Json& operator=(const Json&) = delete;

  Json& raw(std::string_view text) {
    buffer_ += text;
    if (buffer_.size() >= kFlush) flush();
    return *this;
  }
  Json& key(std::string_view name) { return raw(",\"").raw(name).raw("\":"); }
  Json& number(std::int64_t value) { return raw(std::to_string(value)); }
  Json& text(std::string_view value) {
    std::string quoted;
    reports::detail::append_json(quoted, value);
    for (std::size_t at = quoted.find('<'); at != std::string::npos; at = quoted.find('<', at)) {
      quoted.replace(at, 1, "\\u003c");
    }
    return raw(quoted);
  }
  template <class Items, class Write>
  Json& list(const Items& items, Write&& write) {
    raw("[");
    bool first = true;
    for (const auto& item : items) {
      if (!first) raw(",");
      first = false;
      write(item);
    }
    return raw("]");
  }

 private:
  static constexpr std::size_t kFlush = std::size_t{1} << 20;
  void flush() {
    out_.write(buffer_.data(), static_cast<std::streamsize>(buffer_.size()));
    buffer_.clear();
  }
  std::ostream& out_;
  std::string buffer_;
};

std::string html(std::string_view text) {
  std::string out;
  for (const char c : reports::detail::valid_utf8(text)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

void write_device(const Snapshot& snapshot, const Labels& labels, std::size_t device, Json& json) {
  static const std::vector<Event> kNone;
  const auto& trace = device < snapshot.traces.size() ? snapshot.traces[device] : kNone;
  const Replay levels = replay(snapshot, device);
  json.raw("{\"device\":").number(levels.device);
  json.key("peak").number(levels.peak_event == Replay::kNone ? 0 : std::int64_t{levels.peak_event} + 1);

  // Steps of time: backwards ones are none.
  const std::int64_t start = trace.empty() ? 0 : trace.front().time_us;
  std::int64_t latest = start;
  json.key("delta").list(trace, [&](const Event& event) {
    const std::int64_t now = std::max(latest, event.time_us);
    json.number(static_cast<std::int64_t>(static_cast<std::uint64_t>(now) - static_cast<std::uint64_t>(latest)));
    latest = now;
  });

  const auto& categories = labels.categories();
  std::unordered_map<TextId, std::size_t> place;
  for (const TextId category : categories) place.emplace(category, place.size());
  json.key("categories").list(categories, [&](TextId category) { json.text(labels.text(category)); });
  json.key("size").list(levels.allocations,
                        [&](const Allocation& a) { json.number(static_cast<std::int64_t>(a.size)); });
  const auto begin_of = [](const Allocation& a) {
    return a.begin == Allocation::kBefore ? std::int64_t{-1} : std::int64_t{a.begin};
  };
  std::int64_t last = 0;
  json.key("begin").list(levels.allocations, [&](const Allocation& a) {
    json.number(begin_of(a) - last);
    last = begin_of(a);
  });
  json.key("end").list(levels.allocations, [&](const Allocation& a) {
    json.number(a.end == Allocation::kNever ? -1 : std::int64_t{a.end} - begin_of(a));
  });
  json.key("category").list(levels.allocations, [&](const Allocation& a) {
    json.number(static_cast<std::int64_t>(place.at(labels.category(a))));
  });
  std::vector<StackId> stacks;
  std::unordered_map<StackId, std::size_t> stack_place;
  json.key("stack").list(levels.allocations, [&](const Allocation& a) {
    const auto [at, added] = stack_place.try_emplace(a.stack, stacks.size());
    if (added) stacks.push_back(a.stack);
    json.number(static_cast<std::int64_t>(at->second));
  });
  std::vector<std::string> lines;
  std::unordered_map<std::string, std::size_t> line_place;
  json.key("stacks").list(stacks, [&](StackId stack) {
    const StackLabels& label = labels.of(stack);
    json.raw("{\"operation\":").text(labels.text(label.operation));
    json.key("layer").text(labels.text(label.layer)).key("source").text(labels.text(label.source));
    json.key("frames").list(labels.frames(stack), [&](const std::string& line) {
      const auto [at, added] = line_place.try_emplace(line, lines.size());
      if (added) lines.push_back(line);
      json.number(static_cast<std::int64_t>(at->second));
    });
    json.raw("}");
  });
  json.key("lines").list(lines, [&](const std::string& line) { json.text(line); });

  // Reserved bytes change seldom.
  std::vector<std::pair<std::int64_t, std::uint64_t>> reserved{{0, levels.before.reserved}};
  std::vector<std::uint32_t> ooms;
  for (std::uint32_t i = 0; i < levels.after.size(); ++i) {
    if (levels.after[i].reserved != reserved.back().second) {
      reserved.emplace_back(std::int64_t{i} + 1, levels.after[i].reserved);
    }
    if (trace[i].action == Action::oom) ooms.push_back(i);
  }
  json.key("reservedAt").list(reserved, [&](const auto& change) { json.number(change.first); });
  json.key("reservedTo").list(reserved, [&](const auto& change) {
    json.number(static_cast<std::int64_t>(change.second));
  });
  json.key("ooms").list(ooms, [&](std::uint32_t event) { json.number(event); });

  std::vector<TextId> names;
  std::unordered_map<TextId, std::size_t> name_place;
  const auto relative = [&](std::int64_t time) {
    return std::max<std::int64_t>(
        0, static_cast<std::int64_t>(static_cast<std::uint64_t>(time) - static_cast<std::uint64_t>(start)));
  };
  json.key("phases").list(phases_of(snapshot, device), [&](const Phase& phase) {
    const auto [at, added] = name_place.try_emplace(phase.name, names.size());
    if (added) names.push_back(phase.name);
    json.raw("[").number(static_cast<std::int64_t>(at->second)).raw(",").number(phase.begin).raw(",").number(phase.end);
    json.raw(",").number(phase.depth).raw(",").number(relative(phase.begin_us)).raw(",");
    json.number(relative(phase.end_us)).raw("]");
  });
  json.key("names").list(names, [&](TextId name) { json.text(snapshot.text(name)); });
  json.raw("}");
}

constexpr std::string_view kBody = R"HTML(<ul class="facts" id="facts"></ul>
</header>
<noscript><p style="padding: 12px 28px">This page draws with JavaScript, which is off. memsnap summary prints the same figures.</p></noscript>
<main>
<div>
<div class="tools" role="toolbar" aria-label="View">
<select id="device" aria-label="Device" hidden></select>
<span class="group"><button id="events" aria-pressed="true">Events</button><button id="time" aria-pressed="false">Time</button></span>
<span class="group"><button id="in" aria-label="Zoom in">+</button><button id="out" aria-label="Zoom out">&minus;</button><button id="all">All</button></span>
<button id="to-peak">Peak</button>
<button id="reserved" aria-pressed="true">Reserved</button>
</div>
<div class="chart">
<canvas id="plot" tabindex="0" role="img" aria-label="Memory over time"></canvas>
<div id="tip" role="status" hidden></div>
<canvas id="map" aria-hidden="true"></canvas>
</div>
<ul class="legend" id="legend"></ul>
</div>
<aside>
<section aria-labelledby="moment">
<h2 id="moment">At the peak</h2>
<p class="quiet" id="when"></p>
<p><button id="back" hidden>Back to the peak</button></p>
<div class="scroll"><table id="peak"><thead><tr><th>Category</th><th class="number">Size</th><th class="number">Share</th><th class="number">Blocks</th></tr></thead><tbody id="categories"></tbody></table></div>
</section>
<section>
<h2>Largest blocks there</h2>
<div class="scroll"><table><thead><tr><th>What</th><th class="number">Size</th></tr></thead><tbody id="blocks"></tbody></table></div>
<p class="quiet" id="rest"></p>
</section>
</aside>
</main>
<footer><p>Wheel or pinch zooms, dragging pans, a click keeps a moment in the table. Keys: <kbd>←</kbd> <kbd>→</kbd> <kbd>+</kbd> <kbd>−</kbd> <kbd>0</kbd>. Drawn by memsnap.</p></footer>
)HTML";

}  // namespace

void write_timeline_page(const Snapshot& snapshot, const std::string& title, std::ostream& out) {
  const std::string name = html(title);
  // Nothing may be fetched from anywhere, whatever a snapshot's texts say.
  out << "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
         "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
         "script-src 'unsafe-inline'; img-src data:\">\n"
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
         "<meta name=\"generator\" content=\"Warpmeter memsnap\">\n<link rel=\"icon\" href=\"data:,\">\n<title>"
      << name << "</title>\n<style>\n"
      << detail::kTimelineStyle << "</style>\n</head>\n<body>\n<header>\n<h1>" << name << "</h1>\n"
      << kBody << "<script type=\"application/json\" id=\"data\">";
  {
    Json json(out);
    const Labels labels(snapshot);
    json.raw("{\"devices\":[");
    bool first = true;
    for (std::size_t device = 0; device < device_count(snapshot); ++device) {
      if (!has_device(snapshot, device)) continue;
      if (!first) json.raw(",");
      first = false;
      write_device(snapshot, labels, device, json);
    }
    json.raw("]}");
  }
  out << "</script>\n<script>\n" << detail::kTimelineScript << "</script>\n</body>\n</html>\n";
}

}  // namespace warpmeter::reports::snapshot
