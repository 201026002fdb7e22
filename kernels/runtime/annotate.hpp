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

/// Is told of ranges as they open and close.
class RangeObserver {
 public:
  virtual ~RangeObserver() = default;
  virtual void opened(std::string_view name) = 0;
  virtual void closed(std::string_view name) = 0;
};
/// Tells `observer` of the calling thread's ranges from now on; null: nobody. It must outlive that.
void observe_ranges(RangeObserver* observer) noexcept;

/// A frame of the calling thread's logical stack without an NVTX range: for what is worth naming in a memory snapshot
/// and no step of its own in a profile. `name` must be a literal or interned.
class FrameScope {
 public:
  explicit FrameScope(std::string_view name, std::source_location where = std::source_location::current());
  ~FrameScope();
  FrameScope(const FrameScope&) = delete;
  FrameScope& operator=(const FrameScope&) = delete;
};

/// Says what the memory that the enclosing scope allocates is for: "parameters", "gradients", "optimizer state",
/// "activations", "logits", "workspace". The innermost one counts. `category` must be a literal or interned.
class CategoryScope {
 public:
  explicit CategoryScope(std::string_view category) noexcept;
  ~CategoryScope();
  CategoryScope(const CategoryScope&) = delete;
  CategoryScope& operator=(const CategoryScope&) = delete;

 private:
  std::string_view outer_;
};

/// The calling thread's category; empty outside of every scope.
[[nodiscard]] std::string_view current_category() noexcept;

/// True when NVTX ranges are more than no-ops in this build.
[[nodiscard]] bool nvtx_enabled() noexcept;

}  // namespace warpmeter
