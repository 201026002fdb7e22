#include <array>
#include <sstream>

#include <fmt/core.h>

#include "reports/snapshot/check.hpp"
#include "reports/snapshot/reader.hpp"
#include "reports/snapshot/summary.hpp"
#include "reports/snapshot/timeline.hpp"
#include "reports/snapshot/writer.hpp"
#include "tools/harness/usage_error.hpp"
#include "tools/memsnap/command.hpp"

namespace warpmeter::memsnap {
namespace {

using harness::OptionTable;
using harness::UsageError;
using reports::Format;
using reports::snapshot::Snapshot;

constexpr std::array<std::string_view, 3> kTableFormats = {"md", "json", "csv"};
constexpr std::string_view kTableEndings = ".md, .json or .csv";
constexpr int kMostLines = 1'000'000;

void add_limit(OptionTable& table) {
  table.add({.name = "--limit",
             .metavar = "N",
             .default_text = "10",
             .accepted = fmt::format("a whole number from 0 to {}", kMostLines),
             .help = "Lines of a table in Markdown, and blocks listed as the largest. 0: every line.",
             .example = "--limit 25",
             .group = "Output"});
}

std::size_t limit_of(const OptionTable& table) {
  return static_cast<std::size_t>(table.integer("--limit", 0, kMostLines));
}

/// Checked before anything is read: the endings of -o.
std::vector<std::pair<std::string, Format>> table_outputs(const OptionTable& table) {
  std::vector<std::pair<std::string, Format>> outputs;
  for (const std::string& path : table.texts("--output")) {
    const auto format = reports::format_of_path(path);
    if (!format || *format == Format::jsonl) throw table.error("--output", path, "unknown ending");
    outputs.emplace_back(path, *format);
  }
  require_writable(table, table.texts("--output"));
  return outputs;
}

/// Writes a table to stdout in --format and to every -o. stdout keeps quiet where a file was asked for alone.
template <class Write>
int write_tables(const CommandLine& line, Write&& write) {
  const Format format = reports::parse_format(line.options.word("--format", kTableFormats)).value();
  const auto outputs = table_outputs(line.options);
  bool ok = true;
  for (const auto& [path, its_format] : outputs) {
    std::ostringstream text;
    write(its_format, text);
    reports::snapshot::write_file(path, text.view());
  }
  if (outputs.empty() || line.options.given("--format")) {
    std::ostringstream text;
    write(format, text);
    ok = print(text.view());
  }
  return ok ? 0 : 1;
}

// summary

void add_summary_options(OptionTable& table) {
  add_limit(table);
  add_output_options(table, "md, json, csv", kTableEndings);
  table.add_examples({"memsnap summary snapshot.pickle", "memsnap summary snapshot.pickle --limit 0 -o summary.csv"});
}

int run_summary(const CommandLine& line) {
  (void)table_outputs(line.options);
  const std::size_t limit = limit_of(line.options);
  const Snapshot snapshot = reports::snapshot::read_snapshot(line.files[0]);
  const auto summary = reports::snapshot::summarize(snapshot, {limit == 0 ? kMostLines : limit});
  return write_tables(line, [&](Format format, std::ostream& out) {
    reports::snapshot::write_summary(summary, line.files[0], format, limit, out);
  });
}

// diff

void add_diff_options(OptionTable& table) {
  add_limit(table);
  add_output_options(table, "md, json, csv", kTableEndings);
  table.add_examples({"memsnap diff fp32.pickle bf16.pickle"});
}

int run_diff(const CommandLine& line) {
  (void)table_outputs(line.options);
  const std::size_t limit = limit_of(line.options);
  const auto a = reports::snapshot::summarize(reports::snapshot::read_snapshot(line.files[0]));
  const auto b = reports::snapshot::summarize(reports::snapshot::read_snapshot(line.files[1]));
  const auto difference = reports::snapshot::compare(a, b);
  return write_tables(line, [&](Format format, std::ostream& out) {
    reports::snapshot::write_difference(difference, line.files[0], line.files[1], format, limit, out);
  });
}

// check

void add_check_options(OptionTable& table) {
  table.add_examples({"memsnap check snapshot.pickle"});
}

int run_check(const CommandLine& line) {
  const Snapshot snapshot = reports::snapshot::read_snapshot(line.files[0]);
  const auto result = reports::snapshot::check(snapshot);
  if (!result.problem.empty()) {
    (void)print(harness::one_line(line.files[0] + ": " + result.problem) + "\n");
    return 1;
  }
  return print(fmt::format("{}: ok ({} segments, {} blocks, {} events)\n", harness::one_line(line.files[0]),
                           result.segments, result.blocks, result.events))
             ? 0
             : 1;
}

// convert

enum class FileKind { pickle, json, trace };

std::pair<std::string, FileKind> converted_output(const OptionTable& table) {
  const std::vector<std::string> outputs = table.texts("--output");
  if (outputs.empty())
    throw UsageError("--output", "", "nothing to write to", "-o out.json, out.pickle or out.trace.json");
  if (outputs.size() > 1) throw table.error("--output", outputs[1], "convert writes one file");
  const std::string& path = outputs.front();
  if (path.ends_with(".trace.json")) return {path, FileKind::trace};
  if (path.ends_with(".json")) return {path, FileKind::json};
  if (path.ends_with(".pickle") || path.ends_with(".pkl")) return {path, FileKind::pickle};
  throw table.error("--output", path, "unknown ending");
}

void add_convert_options(OptionTable& table) {
  add_output_options(table, "", ".json, .pickle, .pkl or .trace.json (Perfetto)");
  table.add({.name = "--protocol",
             .metavar = "N",
             .default_text = "4",
             .accepted = "2, 3 or 4",
             .help = "Protocol of a pickle that is written. The web viewer reads all three.",
             .example = "--protocol 2",
             .group = "Output"});
  table.add_examples({"memsnap convert snapshot.pickle -o snapshot.json",
                      "memsnap convert snapshot.json -o snapshot.pickle",
                      "memsnap convert snapshot.pickle -o snapshot.trace.json"});
}

int run_convert(const CommandLine& line) {
  const auto [path, kind] = converted_output(line.options);
  require_writable(line.options, {path});
  const int protocol = static_cast<int>(line.options.integer("--protocol", 2, 4));
  const Snapshot snapshot = reports::snapshot::read_snapshot(line.files[0]);
  std::ostringstream out;
  switch (kind) {
    case FileKind::pickle:
      write_pickle(snapshot, out, protocol);
      break;
    case FileKind::json:
      write_json(snapshot, out);
      break;
    case FileKind::trace:
      write_trace(snapshot, out);
      break;
  }
  reports::snapshot::write_file(path, out.view());
  return 0;
}

// timeline

void add_timeline_options(OptionTable& table) {
  add_output_options(table, "", ".html or .svg");
  table.add({.name = "--title",
             .metavar = "TEXT",
             .accepted = "any text",
             .help = "The page's title.",
             .example = "--title 'large, context 256'",
             .group = "Output",
             .default_note = "the file's name"});
  table.add({.name = "--scale-to",
             .metavar = "SIZE",
             .accepted = "a size: bytes, or KiB MiB GiB TiB (binary), KB MB GB TB (decimal)",
             .help = "The picture's (.svg) axis goes up to SIZE at least, so that several can be held side by side.",
             .example = "--scale-to 18GiB",
             .group = "Output",
             .default_note = "what the file has"});
  table.add_examples({"memsnap timeline snapshot.pickle -o page.html", "memsnap timeline snapshot.pickle -o plot.svg"});
}

int run_timeline(const CommandLine& line) {
  const std::vector<std::string> outputs = line.options.texts("--output");
  if (outputs.empty()) throw UsageError("--output", "", "nothing to write to", "-o page.html or -o plot.svg");
  for (const std::string& path : outputs) {
    if (!path.ends_with(".html") && !path.ends_with(".svg"))
      throw line.options.error("--output", path, "unknown ending");
  }
  require_writable(line.options, outputs);
  const std::string& file = line.files[0];
  const Snapshot snapshot = reports::snapshot::read_snapshot(file);
  const std::string title =
      line.options.has("--title") ? line.options.text("--title") : file.substr(file.rfind('/') + 1);
  const std::uint64_t scale_to = line.options.has("--scale-to") ? line.options.size("--scale-to") : 0;
  for (const std::string& path : outputs) {
    std::ostringstream out;
    if (path.ends_with(".svg")) {
      write_timeline_svg(snapshot, title, out, scale_to);
    } else {
      write_timeline_page(snapshot, title, out);
    }
    reports::snapshot::write_file(path, out.view());
  }
  return 0;
}

}  // namespace

const Command kSummary = {
    "summary",           "FILE",     "the peak, what was live then, the largest blocks, fragmentation, phases", 1,
    add_summary_options, run_summary};
const Command kTimeline = {
    "timeline",           "FILE",      "one self-contained page (-o page.html) or picture (-o plot.svg)", 1,
    add_timeline_options, run_timeline};
const Command kDiff = {"diff",           "A B",   "two snapshots' peaks, categories, operations, biggest changes", 2,
                       add_diff_options, run_diff};
const Command kCheck = {"check",           "FILE",   "every invariant of a snapshot, naming the first that fails", 1,
                        add_check_options, run_check};
const Command kConvert = {"convert",           "FILE",     "to JSON, to a pickle, to a Perfetto trace", 1,
                          add_convert_options, run_convert};

}  // namespace warpmeter::memsnap
