#pragma once

#include <cstdint>
#include <source_location>
#include <string_view>
#include <vector>

namespace warpmeter {

/// One entry of the logical call stack that allocations record: an operation's name and where it is in the source.
struct Frame {
  std::string_view name;  ///< must outlive the program's records: a literal, or interned by intern()
  std::string_view file;
  std::uint32_t line = 0;
};

/// A copy of `text` that lives until the program ends; the same text gives the same copy. Thread-safe.
[[nodiscard]] std::string_view intern(std::string_view text);

/// The calling thread's open ranges, innermost first.
[[nodiscard]] std::vector<Frame> current_frames();

/// Names what the enclosing scope does: an NVTX push/pop range (default domain) where NVTX is built in, and a frame of
/// the calling thread's logical stack. `name` must be a literal or interned.
class Range {
 public:
  explicit Range(std::string_view name, std::source_location where = std::source_location::current());
  ~Range();
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
};

/// True when NVTX ranges are more than no-ops in this build.
[[nodiscard]] bool nvtx_enabled() noexcept;

}  // namespace warpmeter
