#include "reports/snapshot/check.hpp"

#include <algorithm>
#include <cstdio>
#include <map>
#include <unordered_map>
#include <vector>

namespace warpmeter::reports::snapshot {
namespace {

/// Thrown out of the depths; check() returns its text.
struct Wrong {
  std::string what;
};

std::string hex(std::uint64_t address) {
  char text[32];
  std::snprintf(text, sizeof(text), "0x%llx", static_cast<unsigned long long>(address));
  return text;
}
std::string bytes(std::uint64_t size) {
  return std::to_string(size) + " bytes";
}

/// Address ranges that do not overlap.
class Ranges {
 public:
  struct Range {
    std::uint64_t end;
    bool pending;  ///< blocks: given back, not free yet
  };
  using Map = std::map<std::uint64_t, Range>;

  /// The range that shares a byte with [begin, end), or null.
  [[nodiscard]] const Map::value_type* overlapping(std::uint64_t begin, std::uint64_t end) const {
    auto next = ranges_.lower_bound(begin);
    if (next != ranges_.end() && next->first < end) return &*next;
    if (next == ranges_.begin()) return nullptr;
    --next;
    return next->second.end > begin ? &*next : nullptr;
  }
  [[nodiscard]] bool covers(std::uint64_t begin, std::uint64_t end) const {
    auto next = ranges_.upper_bound(begin);
    if (next == ranges_.begin()) return false;
    --next;
    // Neighbours cover together: an expandable segment is mapped piece by piece.
    std::uint64_t reached = next->second.end;
    if (reached <= begin) return false;
    for (++next; reached < end && next != ranges_.end() && next->first == reached; ++next) reached = next->second.end;
    return reached >= end;
  }
  [[nodiscard]] Map& map() { return ranges_; }

 private:
  Map ranges_;
};

class Checker {
 public:
  explicit Checker(const Snapshot& snapshot) : s_(snapshot) {}

  CheckResult run() {
    try {
      check_segments();
      for (std::size_t device = 0; device < s_.traces.size(); ++device) check_trace(device);
      check_categories();
      check_annotations();
    } catch (const Wrong& wrong) {
      result_.problem = wrong.what;
    }
    return result_;
  }

 private:
  [[noreturn]] static void wrong(std::string where, const std::string& what) { throw Wrong{where + ": " + what}; }

  void check_segments() {
    std::unordered_map<std::int64_t, Ranges> devices;
    for (std::size_t i = 0; i < s_.segments.size(); ++i) {
      const Segment& segment = s_.segments[i];
      const std::string where = "segments[" + std::to_string(i) + "]";
      ++result_.segments;
      if (segment.device < 0) wrong(where, "device " + std::to_string(segment.device));
      if (s_.has_traces && static_cast<std::uint64_t>(segment.device) >= s_.traces.size()) {
        wrong(where, "device " + std::to_string(segment.device) + " has no trace: there are " +
                         std::to_string(s_.traces.size()));
      }
      const std::uint64_t end = segment.address + segment.total_size;
      if (end < segment.address) wrong(where, "ends beyond the address space");
      if (segment.total_size == 0) wrong(where, "is empty");
      auto& ranges = devices[segment.device];
      if (const auto* other = ranges.overlapping(segment.address, end)) {
        wrong(where, "overlaps the segment at " + hex(other->first));
      }
      ranges.map().emplace(segment.address, Ranges::Range{end, false});
      check_blocks(segment, where);
    }
  }

  void check_blocks(const Segment& segment, const std::string& where) {
    std::uint64_t reached = segment.address, allocated = 0, active = 0, requested = 0;
    for (std::size_t i = 0; i < segment.blocks.size(); ++i) {
      const Block& block = segment.blocks[i];
      const auto here = [&] { return where + ".blocks[" + std::to_string(i) + "]"; };
      ++result_.blocks;
      if (block.address != reached) {
        wrong(here(), "starts at " + hex(block.address) + ", the one before ends at " + hex(reached) +
                          ": blocks must tile their segment");
      }
      if (block.size == 0) wrong(here(), "is empty");
      reached = block.address + block.size;
      if (block.state == BlockState::other) wrong(here(), "state '" + std::string(s_.text(block.state_text)) + "'");
      if (block.stack != 0 && (block.present & Block::kRequested) == 0) {
        wrong(here(), "has frames but no 'requested_size'");
      }
      const bool out = block.state == BlockState::active_allocated;
      if (out && block.requested > block.size) {
        wrong(here(), bytes(block.requested) + " requested of " + bytes(block.size));
      }
      if (out) allocated += block.size;
      if (block.state != BlockState::inactive) {
        active += block.size;
        requested += block.requested;
      }
    }
    if (reached != segment.address + segment.total_size) {
      wrong(where, "its blocks end at " + hex(reached) + ", the segment at " +
                       hex(segment.address + segment.total_size) + ": blocks must tile their segment");
    }
    const auto total = [&](Present bit, const char* field, std::uint64_t says, std::uint64_t is) {
      if ((segment.present & bit) != 0 && says != is) {
        wrong(where, std::string(field) + " " + std::to_string(says) + ", its blocks have " + std::to_string(is));
      }
    };
    total(Segment::kAllocated, "allocated_size", segment.allocated_size, allocated);
    total(Segment::kActive, "active_size", segment.active_size, active);
    total(Segment::kRequested, "requested_size", segment.requested_size, requested);
  }

  // The trace, from its end to its beginning

  void check_trace(std::size_t device) {
    blocks_ = {};
    segments_ = {};
    for (const Segment& segment : s_.segments) {
      if (segment.device != static_cast<std::int64_t>(device)) continue;
      segments_.map().emplace(segment.address, Ranges::Range{segment.address + segment.total_size, false});
      for (const Block& block : segment.blocks) {
        if (block.state == BlockState::inactive) continue;
        blocks_.map().emplace(
            block.address, Ranges::Range{block.address + block.size, block.state == BlockState::active_pending_free});
      }
    }
    const std::vector<Event>& trace = s_.traces[device];
    for (std::size_t i = trace.size(); i-- > 0;) {
      ++result_.events;
      event_ = &trace[i];
      device_ = device;
      index_ = i;
      undo(*event_);
    }
  }

  [[noreturn]] void wrong_event(const std::string& what) const {
    wrong("device_traces[" + std::to_string(device_) + "][" + std::to_string(index_) + "]",
          (event_->action == Action::other ? std::string(s_.text(event_->action_text))
                                           : std::string(name(event_->action))) +
              " of " + bytes(event_->size) + " at " + hex(event_->address) + ": " + what);
  }

  void undo(const Event& event) {
    const std::uint64_t begin = event.address;
    const std::uint64_t end = begin + std::max<std::uint64_t>(event.size, 1);
    if (end < begin) wrong_event("ends beyond the address space");
    switch (event.action) {
      case Action::alloc: {
        const auto found = blocks_.map().find(begin);
        if (found == blocks_.map().end()) wrong_event("the block is neither given back later nor there at the end");
        if (found->second.pending) wrong_event("the block becomes free without being given back");
        if (found->second.end < end) {
          wrong_event("the block has " + bytes(found->second.end - begin) + " when it is given back or at the end");
        }
        blocks_.map().erase(found);
        return;
      }
      case Action::free_completed: {
        if (const auto* other = blocks_.overlapping(begin, end)) {
          wrong_event("afterwards the block at " + hex(other->first) + " lies there and nobody handed it out");
        }
        if (!segments_.covers(begin, end)) wrong_event("the block lies in no segment");
        blocks_.map().emplace(begin, Ranges::Range{end, true});
        return;
      }
      case Action::free_requested: {
        const auto found = blocks_.map().find(begin);
        if (found == blocks_.map().end() || !found->second.pending) {
          wrong_event("there is no live block to give back, or it never becomes free");
        }
        found->second.pending = false;
        return;
      }
      case Action::segment_alloc:
      case Action::segment_map: {
        if (!segments_.covers(begin, end)) wrong_event("the segment neither goes later nor is there at the end");
        if (const auto* block = blocks_.overlapping(begin, end)) {
          wrong_event("the block at " + hex(block->first) + " was live before its segment came");
        }
        take_segment(begin, end);
        return;
      }
      case Action::segment_free:
      case Action::segment_unmap: {
        if (const auto* other = segments_.overlapping(begin, end)) {
          wrong_event("afterwards the segment at " + hex(other->first) + " lies there and never came");
        }
        segments_.map().emplace(begin, Ranges::Range{end, false});
        return;
      }
      case Action::snapshot:
      case Action::oom:
      case Action::other:
        return;
    }
  }

  /// Removes [begin, end), which is covered: pieces of expandable segments are mapped and listed in other cuts.
  void take_segment(std::uint64_t begin, std::uint64_t end) {
    auto at = std::prev(segments_.map().upper_bound(begin));
    while (at != segments_.map().end() && at->first < end) {
      const std::uint64_t from = at->first;
      const std::uint64_t to = at->second.end;
      at = segments_.map().erase(at);
      if (from < begin) segments_.map().emplace(from, Ranges::Range{begin, false});
      if (to > end) segments_.map().emplace(end, Ranges::Range{to, false});
    }
  }

  void check_categories() const {
    const auto category_of = [&](FieldsId id) { return s_.more_text(id, "category"); };
    bool any = false;
    std::vector<signed char> known(s_.fields.size(), -1);  // by further fields: none, some category, "unknown"
    for (const auto& trace : s_.traces) {
      for (const Event& event : trace) {
        signed char& kind = known[event.more];
        if (kind < 0) {
          const std::string_view category = category_of(event.more);
          kind = static_cast<signed char>(category.empty() ? 0 : category == "unknown" ? 2 : 1);
        }
        if (kind == 2) return;
        any |= kind == 1;
      }
    }
    if (any) wrong("device_traces", "events have categories, and none is 'unknown': the web viewer fails on that");
  }

  void check_annotations() const {
    for (std::size_t i = 0; i < s_.annotations.size(); ++i) {
      const std::string_view stage = s_.text(s_.annotations[i].stage);
      if (stage == "START" || stage == "END") continue;
      wrong("external_annotations[" + std::to_string(i) + "]", "stage '" + std::string(stage) + "'");
    }
  }

  const Snapshot& s_;
  CheckResult result_;
  Ranges blocks_, segments_;
  const Event* event_ = nullptr;
  std::size_t device_ = 0, index_ = 0;
};

}  // namespace

CheckResult check(const Snapshot& snapshot) {
  return Checker(snapshot).run();
}

}  // namespace warpmeter::reports::snapshot
