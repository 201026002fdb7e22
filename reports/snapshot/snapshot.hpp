#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "reports/snapshot/data.hpp"
#include "reports/snapshot/texts.hpp"

/// A memory snapshot as PyTorch's CUDA allocator writes it: where every block is now and what happened before.
/// Source: torch/csrc/cuda/memory_snapshot.cpp, c10/cuda/CUDACachingAllocator.h.
namespace warpmeter::reports::snapshot {

using StackId = std::uint32_t;   ///< in Snapshot::stacks; 0: no frames
using FieldsId = std::uint32_t;  ///< in Snapshot::fields; 0: none

/// Which of a struct's optional fields the file has: written back as they were read.
using Present = std::uint16_t;

struct Frame {
  TextId name = 0;
  TextId filename = 0;
  std::int64_t line = 0;
  FieldsId more = 0;
  friend bool operator==(const Frame&, const Frame&) = default;
};

/// Every stack once, innermost frame first. Stack 0 is the empty one.
class Stacks {
 public:
  Stacks() { (void)add_stack({}); }
  [[nodiscard]] std::uint32_t add_frame(const Frame& frame);
  [[nodiscard]] StackId add_stack(std::span<const std::uint32_t> frames);  ///< of indices that add_frame gave
  [[nodiscard]] std::span<const std::uint32_t> operator[](StackId id) const {
    return {indices_.data() + begins_[id], indices_.data() + begins_[id + 1]};
  }
  [[nodiscard]] const Frame& frame(std::uint32_t index) const { return frames_[index]; }
  [[nodiscard]] std::size_t size() const { return begins_.size() - 1; }
  [[nodiscard]] std::size_t frame_count() const { return frames_.size(); }

 private:
  struct FrameHash {
    std::size_t operator()(const Frame& frame) const noexcept;
  };
  std::vector<Frame> frames_;
  std::unordered_map<Frame, std::uint32_t, FrameHash> frame_ids_;
  std::vector<std::size_t> begins_{0};
  std::vector<std::uint32_t> indices_;
  std::unordered_multimap<std::size_t, StackId> stack_ids_;  ///< by hash
};

enum class BlockState : std::uint8_t { active_allocated, active_pending_free, inactive, other };

struct Block {
  enum : Present { kAddress = 1, kRequested = 2, kFrames = 4 };
  std::uint64_t address = 0;  ///< given, or where the blocks before it end
  std::uint64_t size = 0;
  std::uint64_t requested = 0;  ///< before rounding; PyTorch leaves the last one on inactive blocks
  BlockState state = BlockState::inactive;
  Present present = kAddress | kRequested | kFrames;
  TextId state_text = 0;  ///< for `other`
  StackId stack = 0;
  FieldsId more = 0;
};

struct Segment {
  enum : Present {
    kDevice = 1,
    kAllocated = 2,
    kActive = 4,
    kRequested = 8,
    kStream = 16,
    kType = 32,
    kPool = 64,
    kExpandable = 128,
    kFrames = 256
  };
  std::int64_t device = 0;
  std::uint64_t address = 0;
  std::uint64_t total_size = 0;
  std::uint64_t allocated_size = 0;  ///< as the file says; check() holds it against the blocks
  std::uint64_t active_size = 0;
  std::uint64_t requested_size = 0;
  std::int64_t stream = 0;
  TextId type = 0;  ///< "large" or "small"
  std::array<std::int64_t, 2> pool{0, 0};
  bool is_expandable = false;
  Present present = kDevice | kAllocated | kActive | kRequested | kStream | kType | kPool | kExpandable | kFrames;
  StackId stack = 0;
  FieldsId more = 0;
  std::vector<Block> blocks;
};

enum class Action : std::uint8_t {
  alloc,
  free_requested,
  free_completed,
  segment_alloc,
  segment_free,
  segment_map,
  segment_unmap,
  snapshot,
  oom,
  other
};
inline constexpr std::size_t kActions = 10;
[[nodiscard]] std::string_view name(Action action) noexcept;
[[nodiscard]] Action parse_action(std::string_view text) noexcept;  ///< `other` for what is not known

struct Event {
  enum : Present { kAddress = 1, kSize = 2, kStream = 4, kTime = 8, kFrames = 16, kDeviceFree = 32 };
  std::uint64_t address = 0;
  std::uint64_t size = 0;         ///< bytes; PyTorch writes those asked for, before rounding
  std::uint64_t device_free = 0;  ///< oom: bytes free on the device
  std::int64_t time_us = 0;       ///< since the Unix epoch
  std::int64_t stream = 0;
  StackId stack = 0;
  FieldsId more = 0;
  TextId action_text = 0;  ///< for `other`
  Action action = Action::other;
  Present present = kAddress | kSize | kStream | kTime | kFrames;
};

/// The START or END of a named stretch of time.
struct Annotation {
  TextId name = 0;
  TextId stage = 0;  ///< "START" or "END"
  std::int64_t device = 0;
  std::int64_t time_us = 0;
  FieldsId more = 0;
};

struct Snapshot {
  Texts texts;
  Stacks stacks;
  /// Further fields, each set once; entry 0 is the empty one.
  std::vector<Fields> fields{Fields{}};
  std::vector<Segment> segments;
  std::vector<std::vector<Event>> traces;  ///< one a device, oldest first
  std::vector<Annotation> annotations;
  bool has_traces = true;       ///< the file has the key at all
  bool has_annotations = true;  ///< the same
  Fields more;                  ///< further top-level fields, allocator_settings among them

  [[nodiscard]] std::string_view text(TextId id) const { return texts[id]; }
  [[nodiscard]] std::size_t events() const;
  /// A text field of an event's further ones ("category", "user_metadata"); empty where it has none.
  [[nodiscard]] std::string_view more_text(FieldsId id, std::string_view name) const;
};

/// What both hold is the same, whatever the order of fields and the numbers of texts and stacks. Empty, or where they
/// differ: "device_traces[0][17]: size".
[[nodiscard]] std::string difference(const Snapshot& a, const Snapshot& b);

}  // namespace warpmeter::reports::snapshot
