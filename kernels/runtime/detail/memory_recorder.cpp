#include "kernels/runtime/detail/memory_recorder.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "kernels/runtime/check.hpp"

namespace warpmeter::detail {
namespace {

template <class Clock>
std::int64_t clock_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now().time_since_epoch()).count();
}

}  // namespace

// Times are epoch times, but the steady clock's steps: a corrected wall clock must not reorder events.
MemoryRecorder::MemoryRecorder()
    : epoch_offset_us_(clock_us<std::chrono::system_clock>() - clock_us<std::chrono::steady_clock>()) {}

std::int64_t MemoryRecorder::now_us() const {
  return clock_us<std::chrono::steady_clock>() + epoch_offset_us_;
}

void MemoryRecorder::start(std::size_t capacity, bool with_frames) {
  WM_CHECK(capacity > 0, "a history of no events");
  recording_ = true;
  with_frames_ = with_frames;
  capacity_ = capacity;
  oldest_ = 0;
  dropped_ = 0;
  events_.clear();
  events_.reserve(std::min<std::size_t>(capacity, 4096));
  phases_.assign(1, MemoryPhase{{}, now_us(), 0});
  phase_ = 0;
  if (phase_open_) {
    phases_.push_back(open_);
    phase_ = 1;
  }
}

void MemoryRecorder::record(MemoryEvent event) {
  if (!recording_) return;
  event.time_us = now_us();
  event.phase = phase_;
  if (with_frames_) event.frames = current_frames();
  if (events_.size() < capacity_) {
    events_.push_back(std::move(event));
    return;
  }
  events_[oldest_] = std::move(event);
  oldest_ = oldest_ + 1 == capacity_ ? 0 : oldest_ + 1;
  ++dropped_;
}

void MemoryRecorder::begin_phase(std::string_view name) {
  end_phase();
  open_ = MemoryPhase{std::string(name), now_us(), 0};
  phase_open_ = true;
  if (recording_) {
    phases_.push_back(open_);
    phase_ = static_cast<std::uint32_t>(phases_.size() - 1);
  }
}

void MemoryRecorder::end_phase() {
  if (!phase_open_) return;
  phase_open_ = false;
  if (phase_ != 0) phases_[phase_].end_us = now_us();
  phase_ = 0;
}

MemoryHistory MemoryRecorder::history() const {
  MemoryHistory history;
  const auto middle = events_.begin() + static_cast<std::ptrdiff_t>(oldest_);
  history.events.reserve(events_.size());
  history.events.insert(history.events.end(), middle, events_.end());
  history.events.insert(history.events.end(), events_.begin(), middle);
  history.phases = phases_;
  history.dropped = dropped_;
  return history;
}

}  // namespace warpmeter::detail
