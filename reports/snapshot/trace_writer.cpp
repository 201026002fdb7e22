#include <algorithm>
#include <charconv>
#include <ostream>

#include "reports/detail/json_text.hpp"
#include "reports/snapshot/labels.hpp"
#include "reports/snapshot/phases.hpp"
#include "reports/snapshot/replay.hpp"
#include "reports/snapshot/writer.hpp"

namespace warpmeter::reports::snapshot {
namespace {

/// Chrome's trace format, one event a line. Times are microseconds from the first event of any device.
class TraceOut {
 public:
  TraceOut(const Snapshot& snapshot, std::ostream& out) : snapshot_(snapshot), labels_(snapshot), out_(out) {
    bool any = false;
    for (const auto& trace : snapshot.traces) {
      for (const Event& event : trace) {
        origin_ = any ? std::min(origin_, event.time_us) : event.time_us;
        any = true;
      }
    }
  }

  void run() {
    out_ << "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [";
    for (std::size_t device = 0; device < device_count(snapshot_); ++device) {
      if (has_device(snapshot_, device)) write_device(device);
    }
    out_ << "\n]}\n";
  }

 private:
  void write_device(std::size_t device) {
    pid_ = std::to_string(device);
    begin("M", "process_name");
    line_ += ", \"args\": {\"name\": \"device " + pid_ + "\"}}";
    end();
    const Replay levels = replay(snapshot_, device);
    static const std::vector<Event> kNone;
    const auto& trace = device < snapshot_.traces.size() ? snapshot_.traces[device] : kNone;

    std::vector<std::uint64_t> by_category(labels_.categories().size());
    const auto place_of = [&](const Allocation& allocation) {
      const auto& all = labels_.categories();
      return static_cast<std::size_t>(std::find(all.begin(), all.end(), labels_.category(allocation)) - all.begin());
    };
    for (const Allocation& allocation : levels.allocations) {
      if (allocation.begin == Allocation::kBefore) by_category[place_of(allocation)] += allocation.size;
    }
    if (!trace.empty()) {
      counters(levels.before, trace.front().time_us);
      categories(by_category, trace.front().time_us);
    }
    for (std::uint32_t i = 0; i < trace.size(); ++i) {
      const Event& event = trace[i];
      if (levels.of_event[i] != Replay::kNone) {
        const Allocation& allocation = levels.allocations[levels.of_event[i]];
        const std::size_t place = place_of(allocation);
        if (allocation.begin == i) by_category[place] += allocation.size;
        if (allocation.end == i) by_category[place] -= allocation.size;
      }
      // Of events at the same microsecond the last one stands; a peak among them stands too.
      const bool last = i + 1 == trace.size() || trace[i + 1].time_us != event.time_us;
      if (last || i == levels.peak_event) {
        counters(levels.after[i], event.time_us);
        categories(by_category, event.time_us);
      }
      if (event.action == Action::oom) {
        begin("i", "out of memory", event.time_us);
        line_ += ", \"tid\": 0, \"s\": \"p\", \"args\": {\"requested\": " + std::to_string(event.size) +
                 ", \"device_free\": " + std::to_string(event.device_free) + "}}";
        end();
      }
    }
    for (const Phase& phase : phases_of(snapshot_, device)) {
      begin("X", snapshot_.text(phase.name), phase.begin_us);
      const auto length = static_cast<std::uint64_t>(phase.end_us) - static_cast<std::uint64_t>(phase.begin_us);
      line_ += ", \"tid\": " + std::to_string(phase.depth) + ", \"dur\": " + std::to_string(length) + "}";
      end();
    }
  }

  void counters(const Level& level, std::int64_t time_us) {
    begin("C", "memory", time_us);
    line_ += ", \"args\": {\"allocated\": " + std::to_string(level.allocated) + "}}";
    end();
    begin("C", "reserved", time_us);
    line_ += ", \"args\": {\"reserved\": " + std::to_string(level.reserved) + "}}";
    end();
  }
  void categories(const std::vector<std::uint64_t>& bytes, std::int64_t time_us) {
    begin("C", "by category", time_us);
    line_ += ", \"args\": {";
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      if (i != 0) line_ += ", ";
      reports::detail::append_json(line_, labels_.text(labels_.categories()[i]));
      line_ += ": " + std::to_string(bytes[i]);
    }
    line_ += "}}";
    end();
  }

  void begin(const char* kind, std::string_view name) {
    line_ = "{\"ph\": \"";
    line_ += kind;
    line_ += "\", \"name\": ";
    reports::detail::append_json(line_, name);
    line_ += ", \"pid\": " + pid_;
  }
  void begin(const char* kind, std::string_view name, std::int64_t time_us) {
    begin(kind, name);
    const auto since = static_cast<std::uint64_t>(time_us) - static_cast<std::uint64_t>(origin_);
    line_ += ", \"ts\": " + std::to_string(since);
  }
  void end() {
    out_ << (first_ ? "\n" : ",\n") << line_;
    first_ = false;
  }

  const Snapshot& snapshot_;
  Labels labels_;
  std::ostream& out_;
  std::string pid_, line_;
  std::int64_t origin_ = 0;
  bool first_ = true;
};

}  // namespace

void write_trace(const Snapshot& snapshot, std::ostream& out) {
  TraceOut(snapshot, out).run();
}

}  // namespace warpmeter::reports::snapshot
