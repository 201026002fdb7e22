#include "tests/reports/snapshot/fuzz_target.hpp"

#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>

#include "reports/snapshot/check.hpp"
#include "reports/snapshot/reader.hpp"
#include "reports/snapshot/summary.hpp"
#include "reports/snapshot/timeline.hpp"
#include "reports/snapshot/writer.hpp"

namespace {

namespace snapshot = warpmeter::reports::snapshot;
using snapshot::Snapshot;

[[noreturn]] void wrong(const char* what, const std::string& why) {
  std::fprintf(stderr, "fuzz target: %s: %s\n", what, why.c_str());
  std::abort();
}

/// Reads what was just written: it must be the same.
void same(const Snapshot& written, const std::string& text, const char* format, bool exact) {
  const std::string what = std::string("written as ") + format;
  try {
    const Snapshot read = snapshot::parse_snapshot(text, format, {});
    const std::string where = snapshot::difference(written, read);
    if (exact && !where.empty()) wrong(what.c_str(), where);
  } catch (const warpmeter::reports::ReadError& e) {
    if (exact) wrong(what.c_str(), e.what());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  snapshot::ReadLimits limits;
  limits.memory_bytes = std::size_t{64} << 20;
  Snapshot read;
  try {
    read = snapshot::parse_snapshot(bytes, "input", limits);
  } catch (const warpmeter::reports::ReadError& e) {
    const std::string what = e.what();
    if (what.empty() || what.find('\n') != std::string::npos) wrong("no line", what);
    return 0;
  }
  const auto summary = snapshot::summarize(read, {5});
  std::ostringstream text;
  for (const auto format :
       {warpmeter::reports::Format::md, warpmeter::reports::Format::json, warpmeter::reports::Format::csv}) {
    snapshot::write_summary(summary, "input", format, 3, text);
    snapshot::write_difference(snapshot::compare(summary, summary), "a", "b", format, 3, text);
  }
  (void)snapshot::check(read);
  snapshot::write_timeline_page(read, "input", text);
  snapshot::write_timeline_svg(read, "input", text);
  snapshot::write_trace(read, text);
  for (int protocol = 2; protocol <= 4; ++protocol) {
    std::ostringstream pickle;
    snapshot::write_pickle(read, pickle, protocol);
    same(read, pickle.str(), "a pickle", true);
  }
  // JSON has no tuples, no keys but strings and no floats that are not finite: what comes back may differ there.
  std::ostringstream json;
  snapshot::write_json(read, json);
  same(read, json.str(), "JSON", false);
  return 0;
}
