#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "reports/reader.hpp"
#include "reports/snapshot/snapshot.hpp"

namespace warpmeter::reports::snapshot {

/// What reading an untrusted file may cost. Beyond any of them: ReadError.
struct ReadLimits {
  std::size_t file_bytes = std::size_t{4} << 30;
  std::size_t memory_bytes = std::size_t{6} << 30;  ///< of what the file's values take while it is read
  std::size_t nesting = 64;                         ///< containers within containers, beyond the model's own
};

/// Reads a memory snapshot: a pickle of protocol 0 to 5, or JSON of the same structure.
///
/// A pickle is a program. This reader runs only the opcodes that make dict, list, tuple, str, int, float, bool and None
/// and remember them; whatever would import, call or build anything else is refused, and nothing of Python is involved.
/// Truncated, mutated, huge, deeply nested and cyclic files give a ReadError of one line that says what is wrong where.
[[nodiscard]] Snapshot read_snapshot(const std::string& path, const ReadLimits& limits = {});
[[nodiscard]] Snapshot parse_snapshot(std::string_view bytes, const std::string& origin, const ReadLimits& limits = {});

}  // namespace warpmeter::reports::snapshot
