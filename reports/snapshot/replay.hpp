#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "reports/snapshot/snapshot.hpp"

namespace warpmeter::reports::snapshot {

/// Bytes at one moment.
struct Level {
  std::uint64_t allocated = 0;  ///< in blocks handed out and not given back
  std::uint64_t active = 0;     ///< those, and blocks given back that another stream still uses
  std::uint64_t reserved = 0;   ///< in segments
  std::uint64_t requested = 0;  ///< of `allocated`, what was asked for before rounding
};

/// One block from the event that handed it out to the one that gave it back.
struct Allocation {
  std::uint64_t address = 0;
  std::uint64_t size = 0;  ///< as allocated: see Replay
  std::uint64_t requested = 0;
  std::uint32_t begin = 0;  ///< event that handed it out; kBefore: it was there when the trace began
  std::uint32_t end = 0;    ///< event that gave it back (free_requested); kNever: still out at the end
  std::uint32_t done = 0;   ///< event that made it free (free_completed), or kNever
  StackId stack = 0;
  FieldsId more = 0;  ///< of the event that handed it out; where the trace has none, of the one that gave it back

  static constexpr std::uint32_t kBefore = std::numeric_limits<std::uint32_t>::max();
  static constexpr std::uint32_t kNever = std::numeric_limits<std::uint32_t>::max();

  /// Handed out once event `i` has happened.
  [[nodiscard]] bool live_after(std::uint32_t i) const { return (begin == kBefore || begin <= i) && end > i; }
};

/// What a device's trace and segments say together: every allocation and the levels after every event.
///
/// Where the trace tells requested sizes alone (PyTorch's does), a block that is still there at the end has the size
/// that its segment gives, another the requested one rounded up to 512 bytes, as the allocator rounds.
struct Replay {
  std::int64_t device = 0;
  std::vector<Allocation> allocations;  ///< those from before the trace first, then in order of their beginning
  std::vector<std::uint32_t> of_event;  ///< the allocation that an event is about, or kNone
  Level before;                         ///< when the trace began
  std::vector<Level> after;             ///< after each event
  std::uint32_t peak_event = kNone;     ///< the first after which `allocated` was highest; kNone: at the beginning
  Level peak;                           ///< the levels there
  std::uint64_t reserved_peak = 0;      ///< the most reserved at any time

  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
  [[nodiscard]] const Level& end() const { return after.empty() ? before : after.back(); }
  [[nodiscard]] bool live_at_peak(const Allocation& a) const {
    return peak_event == kNone ? a.begin == Allocation::kBefore : a.live_after(peak_event);
  }
};

/// Number of devices that the snapshot is about: those with a trace or a segment.
[[nodiscard]] std::size_t device_count(const Snapshot& snapshot);
/// True when the device has a segment or an event.
[[nodiscard]] bool has_device(const Snapshot& snapshot, std::size_t device);

/// Never fails: what contradicts itself (see check.hpp) gives levels that are as good as the file is.
[[nodiscard]] Replay replay(const Snapshot& snapshot, std::size_t device);

}  // namespace warpmeter::reports::snapshot
