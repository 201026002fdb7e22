#include <algorithm>
#include <cstdio>
#include <ostream>

#include "reports/detail/cell.hpp"
#include "reports/detail/json_text.hpp"
#include "reports/detail/utf8.hpp"
#include "reports/snapshot/summary.hpp"

namespace warpmeter::reports::snapshot {
namespace {

constexpr std::string_view kSchemaName = "warpmeter-memsnap/1";

Value bytes(std::uint64_t value) {
  return Value(static_cast<std::int64_t>(value));
}
Value count(std::uint64_t value) {
  return Value(static_cast<std::int64_t>(value));
}
template <class T>
Value maybe(const std::optional<T>& value) {
  return value ? Value(static_cast<std::int64_t>(*value)) : Value();
}

/// A table of any of the outputs: JSON takes the rows as they are, Markdown what fits people.
struct Table {
  std::string title;
  std::string key;                 ///< in JSON and CSV
  std::vector<std::string> order;  ///< Markdown's columns
  std::vector<Object> rows;
};

Object levels(const Level& level) {
  Object object;
  object.set("allocated_bytes", bytes(level.allocated));
  object.set("requested_bytes", bytes(level.requested));
  object.set("active_bytes", bytes(level.active));
  object.set("reserved_bytes", bytes(level.reserved));
  return object;
}

Table group_table(std::string title, std::string key, const std::vector<Group>& groups, std::uint64_t whole) {
  Table table{std::move(title), std::move(key), {"name", "size_mib", "peak_share", "blocks"}, {}};
  for (const Group& group : groups) {
    Object row;
    row.set("name", group.name);
    row.set("bytes", bytes(group.bytes));
    row.set("peak_share", whole == 0 ? Value() : Value(static_cast<double>(group.bytes) / static_cast<double>(whole)));
    row.set("blocks", count(group.blocks));
    table.rows.push_back(std::move(row));
  }
  return table;
}

Table allocation_table(std::string title, std::string key, const std::vector<NamedAllocation>& entries) {
  Table table{std::move(title),
              std::move(key),
              {"size_mib", "category", "operation", "layer", "source", "from_event", "to_event"},
              {}};
  for (const NamedAllocation& entry : entries) {
    Object row;
    row.set("bytes", bytes(entry.size));
    row.set("requested_bytes", bytes(entry.requested));
    row.set("category", entry.category);
    row.set("operation", entry.operation);
    row.set("layer", entry.layer);
    row.set("source", entry.source);
    row.set("from_event", maybe(entry.begin));
    row.set("to_event", maybe(entry.end));
    Value::Array frames;
    for (const std::string& frame : entry.frames) frames.emplace_back(frame);
    row.set("frames", std::move(frames));
    table.rows.push_back(std::move(row));
  }
  return table;
}

std::vector<Table> tables_of(const DeviceSummary& s) {
  std::vector<Table> tables;
  tables.push_back(group_table("Live at the peak, by category", "peak_by_category", s.categories, s.peak.allocated));
  tables.push_back(group_table("Live at the peak, by operation", "peak_by_operation", s.operations, s.peak.allocated));
  tables.push_back(group_table("Live at the peak, by layer or call site", "peak_by_layer", s.layers, s.peak.allocated));
  tables.push_back(allocation_table("The largest blocks at the peak", "largest_at_peak", s.largest_at_peak));
  tables.push_back(allocation_table("The largest allocations of all", "largest", s.largest));
  Table phases{
      "Phases", "phases", {"name", "count", "peak_mib", "net_mib", "allocations", "allocated_mib", "time_ms"}, {}};
  for (const PhaseFigures& phase : s.phases) {
    Object row;
    row.set("name", phase.name);
    row.set("count", count(phase.count));
    row.set("peak_bytes", bytes(phase.peak));
    row.set("net_bytes", Value(phase.net));
    row.set("allocations", count(phase.allocations));
    row.set("allocated_bytes", bytes(phase.allocated_bytes));
    row.set("time_us", Value(phase.time_us));
    phases.rows.push_back(std::move(row));
  }
  tables.push_back(std::move(phases));
  return tables;
}

Object totals_of(const DeviceSummary& s) {
  Object object;
  object.set("device", Value(s.device));
  object.set("events", count(s.events));
  Object actions;
  for (std::size_t i = 0; i < kActions; ++i) {
    const std::string_view action = name(static_cast<Action>(i));
    if (s.actions[i] != 0) actions.set(action.empty() ? "other" : action, count(s.actions[i]));
  }
  object.set("actions", std::move(actions));
  object.set("begin", levels(s.begin));
  Object peak = levels(s.peak);
  peak.set("event", maybe(s.peak_event));
  peak.set("time_us", maybe(s.peak_time_us));
  peak.set("phase", s.peak_phase.empty() ? Value() : Value(s.peak_phase));
  peak.set("blocks", count(s.peak_blocks));
  object.set("peak", std::move(peak));
  object.set("peak_reserved_bytes", bytes(s.reserved_peak));
  object.set("end", levels(s.end));
  Object fragmentation;
  fragmentation.set("segments", count(s.segments));
  fragmentation.set("small_segments", count(s.small_segments));
  fragmentation.set("expandable_segments", count(s.expandable_segments));
  fragmentation.set("inactive_bytes", bytes(s.inactive_bytes));
  fragmentation.set("inactive_blocks", count(s.inactive_blocks));
  fragmentation.set("largest_inactive_bytes", bytes(s.largest_inactive));
  fragmentation.set("cached_segment_bytes", bytes(s.cached_segment_bytes));
  fragmentation.set("rounding_bytes", bytes(s.end.allocated - std::min(s.end.requested, s.end.allocated)));
  object.set("fragmentation", std::move(fragmentation));
  if (s.ooms != 0) {
    Object oom;
    oom.set("count", count(s.ooms));
    oom.set("last_requested_bytes", bytes(s.oom_requested));
    oom.set("last_device_free_bytes", bytes(s.oom_device_free));
    object.set("oom", std::move(oom));
  }
  return object;
}

// Markdown

std::string mib(double value) {
  return reports::detail::format_cell("size_mib", Value(value / 1048576.0));
}
std::string mib(std::uint64_t value) {
  return mib(static_cast<double>(value)) + " MiB";
}

/// A row's cell under a Markdown heading: "size_mib" is the field "bytes" in MiB.
std::string cell(const Object& row, const std::string& column) {
  const auto in_mib = [&](const char* field) {
    const Value* value = row.find(field);
    const auto number = value == nullptr ? std::nullopt : value->as_number();
    return number ? mib(*number) : std::string();
  };
  if (column == "size_mib") return in_mib("bytes");
  if (column == "a_mib") return in_mib("a_bytes");
  if (column == "b_mib") return in_mib("b_bytes");
  if (column == "change_mib") {
    std::string text = in_mib("change_bytes");
    return text.empty() || text.starts_with('-') || text == "0" ? text : "+" + text;
  }
  if (column == "peak_mib") return in_mib("peak_bytes");
  if (column == "net_mib") return in_mib("net_bytes");
  if (column == "allocated_mib") return in_mib("allocated_bytes");
  if (column == "time_ms") {
    const auto us = row.find("time_us")->as_number();
    return us ? reports::detail::format_cell("time_ms", Value(*us / 1000)) : "";
  }
  if (column == "from_event" || column == "to_event") {
    const Value* value = row.find(column);
    if (value->is_null()) return column == "from_event" ? "before" : "stays";
  }
  const Value* value = row.find(column);
  return value == nullptr ? "" : reports::detail::escape_markdown(reports::detail::format_cell(column, *value));
}

void write_table(const Table& table, std::size_t limit, std::ostream& out) {
  if (table.rows.empty()) return;
  // A column without a single entry tells nothing.
  std::vector<std::string> columns;
  for (const std::string& column : table.order) {
    const bool some = std::any_of(table.rows.begin(), table.rows.end(),
                                  [&](const Object& row) { return !cell(row, column).empty(); });
    if (some) columns.push_back(column);
  }
  const std::size_t shown = limit == 0 ? table.rows.size() : std::min(limit, table.rows.size());
  std::vector<std::vector<std::string>> cells;
  std::vector<std::size_t> widths;
  for (const std::string& column : columns) widths.push_back(std::max<std::size_t>(column.size(), 3));
  for (std::size_t i = 0; i < shown; ++i) {
    auto& row = cells.emplace_back();
    for (std::size_t c = 0; c < columns.size(); ++c) {
      row.push_back(cell(table.rows[i], columns[c]));
      widths[c] = std::max(widths[c], row[c].size());
    }
  }
  const auto is_text = [&](std::size_t c) {
    const std::string& name = columns[c];
    return name == "name" || name == "category" || name == "operation" || name == "layer" || name == "source";
  };
  const auto line = [&](const std::vector<std::string>& row) {
    out << '|';
    for (std::size_t c = 0; c < columns.size(); ++c) {
      const std::string pad(widths[c] - row[c].size(), ' ');
      out << ' ' << (is_text(c) ? row[c] + pad : pad + row[c]) << " |";
    }
    out << '\n';
  };
  out << "**" << table.title << "**\n\n";
  line(columns);
  out << '|';
  for (std::size_t c = 0; c < columns.size(); ++c) {
    out << std::string(widths[c] + 1, '-') << (is_text(c) ? '-' : ':') << '|';
  }
  out << '\n';
  for (const auto& row : cells) line(row);
  if (shown < table.rows.size()) out << "\n" << table.rows.size() - shown << " more; `--limit 0` shows them.\n";
  out << '\n';
}

std::string device_title(std::int64_t device, std::size_t devices) {
  return devices == 1 ? "" : "### Device " + std::to_string(device) + "\n\n";
}

void write_markdown(const DeviceSummary& s, std::size_t devices, std::size_t limit, std::ostream& out) {
  out << device_title(s.device, devices);
  out << "- Peak: " << mib(s.peak.allocated) << " allocated (" << mib(s.peak.requested) << " asked for) in "
      << s.peak_blocks << " blocks, " << mib(s.peak.reserved) << " reserved";
  if (s.peak_event) {
    out << "; after event " << *s.peak_event << " of " << s.events << ", "
        << reports::detail::format_cell("time_ms", Value(static_cast<double>(*s.peak_time_us) / 1000))
        << " ms from the first";
    if (!s.peak_phase.empty())
      out << ", in " << reports::detail::escape_markdown(reports::detail::printable(s.peak_phase));
  } else if (s.events != 0) {
    out << "; that is where the trace begins";
  }
  out << "\n- Allocated: " << mib(s.begin.allocated) << " at the beginning, " << mib(s.end.allocated)
      << " at the end. Most reserved: " << mib(s.reserved_peak) << "\n";
  out << "- Events: " << s.events;
  std::string actions;
  for (std::size_t i = 0; i < kActions; ++i) {
    if (s.actions[i] == 0) continue;
    const std::string_view action = name(static_cast<Action>(i));
    actions += (actions.empty() ? "" : ", ") + std::to_string(s.actions[i]) + " " +
               std::string(action.empty() ? "other" : action);
  }
  if (!actions.empty()) out << " (" << actions << ")";
  out << "\n- At the end: " << s.segments << " segments of " << mib(s.end.reserved) << " (" << s.small_segments
      << " small, " << s.segments - s.small_segments << " large";
  if (s.expandable_segments != 0) out << ", " << s.expandable_segments << " expandable";
  out << "); " << mib(s.inactive_bytes) << " inactive in " << s.inactive_blocks << " blocks, the largest "
      << mib(s.largest_inactive) << "; " << mib(s.cached_segment_bytes)
      << " in segments without a block, which emptying "
      << "the cache gives back; " << mib(s.end.allocated - std::min(s.end.requested, s.end.allocated))
      << " lost to rounding\n";
  if (s.ooms != 0) {
    out << "- Out of memory: " << s.ooms << (s.ooms == 1 ? " time; it" : " times; the last") << " asked for "
        << mib(s.oom_requested) << " with " << mib(s.oom_device_free) << " free on the device\n";
  }
  out << '\n';
  for (const Table& table : tables_of(s)) write_table(table, limit, out);
}

// CSV: every table's rows under one heading, told apart by `table`.

std::string csv_cell(const Value& value) {
  if (value.is_null()) return "";
  std::string text;
  if (const std::string* words = value.as_string()) {
    text = *words;
  } else {
    reports::detail::append_json(text, value);
  }
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted += '"';
}

void write_csv(const std::vector<std::pair<std::int64_t, std::vector<Table>>>& devices, std::ostream& out) {
  std::vector<std::string> columns;
  for (const auto& [device, tables] : devices) {
    for (const Table& table : tables) {
      for (const Object& row : table.rows) {
        for (const auto& [field, value] : row.fields()) {
          if (field != "frames" && std::find(columns.begin(), columns.end(), field) == columns.end()) {
            columns.push_back(field);
          }
        }
      }
    }
  }
  out << "device,table";
  for (const std::string& column : columns) out << ',' << column;
  out << '\n';
  for (const auto& [device, tables] : devices) {
    for (const Table& table : tables) {
      for (const Object& row : table.rows) {
        out << device << ',' << table.key;
        for (const std::string& column : columns) {
          const Value* value = row.find(column);
          out << ',' << (value == nullptr ? "" : csv_cell(*value));
        }
        out << '\n';
      }
    }
  }
}

/// The totals as a table of names and bytes, for CSV.
Table totals_table(const DeviceSummary& s) {
  Table table{"Totals", "totals", {}, {}};
  const auto add = [&](const char* name_of, const Value& value) {
    Object row;
    row.set("name", name_of);
    row.set("bytes", value);
    table.rows.push_back(std::move(row));
  };
  add("peak allocated", bytes(s.peak.allocated));
  add("peak requested", bytes(s.peak.requested));
  add("peak reserved", bytes(s.reserved_peak));
  add("allocated at the beginning", bytes(s.begin.allocated));
  add("allocated at the end", bytes(s.end.allocated));
  add("reserved at the end", bytes(s.end.reserved));
  add("inactive at the end", bytes(s.inactive_bytes));
  add("in segments without a block", bytes(s.cached_segment_bytes));
  return table;
}

std::vector<Table> tables_of(const DeviceDifference& d) {
  std::vector<Table> tables;
  const auto add = [&](std::string title, std::string key, const std::vector<Difference>& lines) {
    Table table{std::move(title), std::move(key), {"name", "a_mib", "b_mib", "change_mib", "a_blocks", "b_blocks"}, {}};
    for (const Difference& line : lines) {
      Object row;
      row.set("name", line.name);
      row.set("a_bytes", bytes(line.a));
      row.set("b_bytes", bytes(line.b));
      row.set("change_bytes", Value(line.change()));
      const bool blocks = line.a_blocks != 0 || line.b_blocks != 0;
      row.set("a_blocks", blocks ? count(line.a_blocks) : Value());
      row.set("b_blocks", blocks ? count(line.b_blocks) : Value());
      table.rows.push_back(std::move(row));
    }
    tables.push_back(std::move(table));
  };
  add("Totals", "totals", d.totals);
  add("Live at the peak, by category", "peak_by_category", d.categories);
  add("Live at the peak, by operation", "peak_by_operation", d.operations);
  add("Live at the peak, by layer or call site", "peak_by_layer", d.layers);
  add("Peak during each phase (blocks: how often it ran)", "phase_peaks", d.phases);
  return tables;
}

void add_tables(Object& object, const std::vector<Table>& tables) {
  for (const Table& table : tables) {
    Value::Array rows;
    for (const Object& row : table.rows) rows.emplace_back(row);
    object.set(table.key, std::move(rows));
  }
}

void write_json(Object document, Value::Array devices, std::ostream& out) {
  document.set("devices", std::move(devices));
  std::string text;
  reports::detail::append_json(text, document);
  out << text << '\n';
}

}  // namespace

void write_summary(const Summary& summary, const std::string& file, Format format, std::size_t limit,
                   std::ostream& out) {
  if (format == Format::csv) {
    std::vector<std::pair<std::int64_t, std::vector<Table>>> devices;
    for (const DeviceSummary& device : summary.devices) {
      std::vector<Table> tables = tables_of(device);
      tables.insert(tables.begin(), totals_table(device));
      devices.emplace_back(device.device, std::move(tables));
    }
    return write_csv(devices, out);
  }
  if (format != Format::md) {
    Object document;
    document.set("schema", kSchemaName);
    document.set("kind", "summary");
    document.set("file", file);
    if (!summary.workload.empty()) {
      Object recording;
      recording.set("workload", summary.workload);
      recording.set("predicted_peak_bytes", summary.predicted_peak ? bytes(*summary.predicted_peak) : Value());
      document.set("recording", std::move(recording));
    }
    Value::Array devices;
    for (const DeviceSummary& device : summary.devices) {
      Object object = totals_of(device);
      add_tables(object, tables_of(device));
      devices.emplace_back(std::move(object));
    }
    return write_json(std::move(document), std::move(devices), out);
  }
  out << "## " << reports::detail::escape_markdown(reports::detail::printable(file)) << "\n\n";
  if (!summary.workload.empty()) {
    out << "- Recorded: " << reports::detail::escape_markdown(reports::detail::printable(summary.workload));
    if (summary.predicted_peak) out << "; the memory model predicts a peak of " << mib(*summary.predicted_peak);
    out << '\n';
  }
  if (summary.devices.empty()) out << "No segments and no events.\n";
  for (const DeviceSummary& device : summary.devices) write_markdown(device, summary.devices.size(), limit, out);
}

void write_difference(const std::vector<DeviceDifference>& difference, const std::string& a, const std::string& b,
                      Format format, std::size_t limit, std::ostream& out) {
  if (format == Format::csv) {
    std::vector<std::pair<std::int64_t, std::vector<Table>>> devices;
    for (const DeviceDifference& device : difference) devices.emplace_back(device.device, tables_of(device));
    return write_csv(devices, out);
  }
  if (format != Format::md) {
    Object document;
    document.set("schema", kSchemaName);
    document.set("kind", "diff");
    document.set("a", a);
    document.set("b", b);
    Value::Array devices;
    for (const DeviceDifference& device : difference) {
      Object object;
      object.set("device", Value(device.device));
      add_tables(object, tables_of(device));
      devices.emplace_back(std::move(object));
    }
    return write_json(std::move(document), std::move(devices), out);
  }
  out << "## " << reports::detail::escape_markdown(reports::detail::printable(b)) << " against "
      << reports::detail::escape_markdown(reports::detail::printable(a)) << "\n\n";
  out << "a is " << reports::detail::escape_markdown(reports::detail::printable(a)) << ", b is "
      << reports::detail::escape_markdown(reports::detail::printable(b)) << "; change is b - a.\n\n";
  for (const DeviceDifference& device : difference) {
    out << device_title(device.device, difference.size());
    for (const Table& table : tables_of(device)) write_table(table, limit, out);
  }
}

}  // namespace warpmeter::reports::snapshot
