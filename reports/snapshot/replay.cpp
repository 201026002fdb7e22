#include "reports/snapshot/replay.hpp"

#include <algorithm>
#include <unordered_map>

namespace warpmeter::reports::snapshot {
namespace {

constexpr std::uint64_t kRounding = 512;

std::uint64_t rounded(std::uint64_t size) {
  return (size + kRounding - 1) / kRounding * kRounding;
}

std::int64_t device_of(const Segment& segment) {
  return segment.device;
}

/// Requested sizes that events carry beside rounded ones, by their further fields.
class RequestedSizes {
 public:
  explicit RequestedSizes(const Snapshot& snapshot) {
    sizes_.reserve(snapshot.fields.size());
    for (const Fields& fields : snapshot.fields) {
      const Data* const data = find(fields, "requested_size");
      const std::int64_t* const value = data == nullptr ? nullptr : data->as_integer();
      sizes_.push_back(value == nullptr || *value < 0 ? kNone : static_cast<std::uint64_t>(*value));
    }
  }
  [[nodiscard]] std::uint64_t of(const Event& event) const {
    return sizes_[event.more] == kNone ? event.size : sizes_[event.more];
  }

 private:
  static constexpr std::uint64_t kNone = ~0ULL;
  std::vector<std::uint64_t> sizes_;
};

class Builder {
 public:
  Builder(const Snapshot& snapshot, std::size_t device) : snapshot_(snapshot), requested_(snapshot) {
    out_.device = static_cast<std::int64_t>(device);
    if (device < snapshot.traces.size()) trace_ = &snapshot.traces[device];
  }

  Replay run() {
    match();
    add_blocks_of_segments();
    order();
    set_levels();
    return std::move(out_);
  }

 private:
  [[nodiscard]] std::size_t events() const { return trace_ == nullptr ? 0 : trace_->size(); }

  /// Which event frees what which other event allocated.
  void match() {
    out_.of_event.assign(events(), Replay::kNone);
    open_.reserve(events() / 4 + 16);
    for (std::uint32_t i = 0; i < events(); ++i) {
      const Event& event = (*trace_)[i];
      switch (event.action) {
        case Action::alloc:
          open_[event.address] = add(event, i, i);
          break;
        case Action::free_requested: {
          const auto found = open_.find(event.address);
          std::uint32_t which = 0;
          if (found != open_.end()) {
            which = found->second;
            open_.erase(found);
          } else {
            which = add(event, Allocation::kBefore, i);
          }
          out_.allocations[which].end = i;
          out_.of_event[i] = which;
          pending_[event.address] = which;
          break;
        }
        case Action::free_completed: {
          std::uint32_t which = 0;
          if (const auto waiting = pending_.find(event.address); waiting != pending_.end()) {
            which = waiting->second;
            pending_.erase(waiting);
          } else if (const auto found = open_.find(event.address); found != open_.end()) {
            which = found->second;  // a trace that tells completions alone
            open_.erase(found);
            out_.allocations[which].end = i;
          } else {
            // Given back before the trace began: never among the allocated ones here.
            which = add(event, Allocation::kBefore, i);
            out_.allocations[which].end = 0;
            given_back_before_.push_back(which);
          }
          out_.allocations[which].done = i;
          out_.of_event[i] = which;
          break;
        }
        default:
          break;
      }
    }
  }

  std::uint32_t add(const Event& event, std::uint32_t begin, std::uint32_t of) {
    Allocation allocation;
    allocation.address = event.address;
    allocation.requested = requested_.of(event);
    allocation.size = rounded(event.size);
    allocation.begin = begin;
    allocation.end = allocation.done = Allocation::kNever;
    // A free's stack is that of who gave the block back; its category is the block's.
    if (begin != Allocation::kBefore) allocation.stack = event.stack;
    allocation.more = event.more;
    out_.allocations.push_back(allocation);
    out_.of_event[of] = static_cast<std::uint32_t>(out_.allocations.size() - 1);
    return out_.of_event[of];
  }

  void add_blocks_of_segments() {
    for (const Segment& segment : snapshot_.segments) {
      if (device_of(segment) != out_.device) continue;
      reserved_at_end_ += segment.total_size;
      for (const Block& block : segment.blocks) {
        const bool pending = block.state == BlockState::active_pending_free;
        if (block.state != BlockState::active_allocated && !pending) continue;
        auto& known = pending ? pending_ : open_;
        if (const auto found = known.find(block.address); found != known.end()) {
          out_.allocations[found->second].size = block.size;
          out_.allocations[found->second].requested = block.requested;
          continue;
        }
        Allocation allocation;
        allocation.address = block.address;
        allocation.size = block.size;
        allocation.requested = block.requested;
        allocation.begin = Allocation::kBefore;
        allocation.end = allocation.done = Allocation::kNever;
        allocation.stack = block.stack;
        allocation.more = block.more;
        if (pending) {
          allocation.end = 0;
          given_back_before_.push_back(static_cast<std::uint32_t>(out_.allocations.size()));
        }
        out_.allocations.push_back(allocation);
      }
    }
  }

  /// Those from before the trace first. Those given back before it are active but never allocated: they are counted in
  /// the levels and left out of the allocations.
  void order() {
    std::vector<bool> drop(out_.allocations.size(), false);
    for (const std::uint32_t which : given_back_before_) {
      drop[which] = true;
      const Allocation& allocation = out_.allocations[which];
      out_.before.active += allocation.size;
      if (allocation.done != Allocation::kNever) completed_.emplace(allocation.done, allocation.size);
    }
    std::vector<std::uint32_t> place(out_.allocations.size(), Replay::kNone);
    std::vector<Allocation> ordered;
    ordered.reserve(out_.allocations.size());
    for (const bool before : {true, false}) {
      for (std::uint32_t i = 0; i < out_.allocations.size(); ++i) {
        if (drop[i] || (out_.allocations[i].begin == Allocation::kBefore) != before) continue;
        place[i] = static_cast<std::uint32_t>(ordered.size());
        ordered.push_back(out_.allocations[i]);
      }
    }
    out_.allocations = std::move(ordered);
    for (std::uint32_t& which : out_.of_event) {
      if (which != Replay::kNone) which = place[which];
    }
  }

  void set_levels() {
    Level level = out_.before;
    for (const Allocation& allocation : out_.allocations) {
      if (allocation.begin != Allocation::kBefore) break;
      level.allocated += allocation.size;
      level.active += allocation.size;
      level.requested += allocation.requested;
    }
    level.reserved = reserved_at_end_;
    for (std::size_t i = events(); i-- > 0;) level.reserved -= reserved_by((*trace_)[i]);
    out_.before = out_.peak = level;
    out_.reserved_peak = level.reserved;
    out_.after.reserve(events());
    for (std::uint32_t i = 0; i < events(); ++i) {
      const Event& event = (*trace_)[i];
      const Allocation* const about = out_.of_event[i] == Replay::kNone ? nullptr : &out_.allocations[out_.of_event[i]];
      if (about != nullptr && about->begin == i) {
        level.allocated += about->size;
        level.active += about->size;
        level.requested += about->requested;
      }
      if (about != nullptr && about->end == i) {
        level.allocated -= about->size;
        level.requested -= about->requested;
      }
      if (about != nullptr && about->done == i) level.active -= about->size;
      if (const auto found = completed_.find(i); found != completed_.end()) level.active -= found->second;
      level.reserved += reserved_by(event);
      out_.after.push_back(level);
      out_.reserved_peak = std::max(out_.reserved_peak, level.reserved);
      if (level.allocated > out_.peak.allocated) {
        out_.peak = level;
        out_.peak_event = i;
      }
    }
  }

  /// Modulo 2^64: negative for what gives back.
  [[nodiscard]] static std::uint64_t reserved_by(const Event& event) {
    switch (event.action) {
      case Action::segment_alloc:
      case Action::segment_map:
        return event.size;
      case Action::segment_free:
      case Action::segment_unmap:
        return std::uint64_t{0} - event.size;
      default:
        return 0;
    }
  }

  const Snapshot& snapshot_;
  RequestedSizes requested_;
  const std::vector<Event>* trace_ = nullptr;
  std::unordered_map<std::uint64_t, std::uint32_t> open_, pending_;  ///< allocations by address
  std::vector<std::uint32_t> given_back_before_;
  std::unordered_map<std::uint32_t, std::uint64_t> completed_;  ///< by event: active bytes from before the trace
  std::uint64_t reserved_at_end_ = 0;
  Replay out_;
};

}  // namespace

std::size_t device_count(const Snapshot& snapshot) {
  std::size_t count = snapshot.traces.size();
  for (const Segment& segment : snapshot.segments) {
    // A device without a trace: no machine has so many that a larger number means one.
    constexpr std::int64_t kMostDevices = 1024;
    if (segment.device < 0 || segment.device >= kMostDevices) continue;
    count = std::max(count, static_cast<std::size_t>(segment.device) + 1);
  }
  return count;
}

bool has_device(const Snapshot& snapshot, std::size_t device) {
  if (device < snapshot.traces.size() && !snapshot.traces[device].empty()) return true;
  return std::any_of(snapshot.segments.begin(), snapshot.segments.end(),
                     [&](const Segment& segment) { return segment.device == static_cast<std::int64_t>(device); });
}

Replay replay(const Snapshot& snapshot, std::size_t device) {
  return Builder(snapshot, device).run();
}

}  // namespace warpmeter::reports::snapshot
