#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "kernels/runtime/allocator.hpp"
#include "reports/snapshot/snapshot.hpp"

namespace warpmeter::harness {

/// --dump-on-oom: records an allocator's history row by row and keeps what there was when a row ran out of memory.
class OomDump {
 public:
  /// `allocator` must outlive it. `path` ends in .pickle or .json.
  OomDump(CachingAllocator& allocator, std::string path);
  ~OomDump();
  OomDump(const OomDump&) = delete;
  OomDump& operator=(const OomDump&) = delete;

  void begin_row();
  /// Writes the last snapshot of a row that ended out of memory. What a user should know of it in one line, or empty.
  [[nodiscard]] std::string end_row(bool out_of_memory);

  /// Where the next one goes: the path, then with -2, -3, ... before its ending.
  [[nodiscard]] std::string next_path() const;
  /// An isolated child has written one there.
  void count_one() { ++written_; }
  /// As if `count` had been written so far.
  void skip_to(std::size_t count) { written_ = count; }

 private:
  CachingAllocator& allocator_;
  std::string path_;
  std::size_t written_ = 0;
  std::optional<reports::snapshot::Snapshot> snapshot_;
};

}  // namespace warpmeter::harness
