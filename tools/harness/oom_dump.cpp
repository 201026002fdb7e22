#include "tools/harness/oom_dump.hpp"

#include <exception>
#include <sstream>

#include <fmt/core.h>

#include "reports/snapshot/writer.hpp"
#include "tools/harness/memory_snapshot.hpp"

namespace warpmeter::harness {
namespace {

constexpr std::size_t kMostEvents = 1'000'000;

}  // namespace

OomDump::OomDump(CachingAllocator& allocator, std::string path) : allocator_(allocator), path_(std::move(path)) {
  allocator_.on_out_of_memory([this] {
    try {
      snapshot_ = take_snapshot(allocator_);
    } catch (const std::exception&) {
      // The host's memory may be what ran out; the row's status matters more than its picture.
    }
  });
}

OomDump::~OomDump() {
  allocator_.on_out_of_memory({});
  allocator_.stop_history();
}

void OomDump::begin_row() {
  snapshot_.reset();
  allocator_.start_history(kMostEvents, true);
}

std::string OomDump::end_row(bool out_of_memory) {
  allocator_.stop_history();
  if (!out_of_memory || !snapshot_) return "";
  const std::string path = next_path();
  try {
    std::ostringstream text;
    if (path.ends_with(".json")) {
      write_json(*snapshot_, text);
    } else {
      write_pickle(*snapshot_, text);
    }
    reports::snapshot::write_file(path, text.view());
  } catch (const std::exception& e) {
    return fmt::format("a row ran out of memory: {}", e.what());
  }
  snapshot_.reset();
  ++written_;
  return fmt::format("a row ran out of memory: what lay where is in '{0}' (memsnap summary {0})", path);
}

std::string OomDump::next_path() const {
  if (written_ == 0) return path_;
  const std::size_t dot = path_.rfind('.');
  return fmt::format("{}-{}{}", path_.substr(0, dot), written_ + 1, path_.substr(dot));
}

}  // namespace warpmeter::harness
