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
  phases_.assign(1, MemoryPhase{{}, boundary_us(), 0});
  for (OpenPhase& phase : open_) list(phase);
}

std::int64_t MemoryRecorder::boundary_us() {
  earliest_us_ = std::max({now_us(), last_us_ + 1, earliest_us_});
  return earliest_us_;
}

void MemoryRecorder::list(OpenPhase& phase) {
  phase.index = static_cast<std::uint32_t>(phases_.size());
  phases_.push_back(MemoryPhase{phase.name, phase.begin_us, 0});
}

void MemoryRecorder::record(MemoryEvent event) {
  if (!recording_) return;
  last_us_ = std::max(now_us(), earliest_us_);
  event.time_us = last_us_;
  event.phase = open_.empty() ? 0 : open_.back().index;
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
  push_phase(name);
}

void MemoryRecorder::end_phase() {
  while (!open_.empty()) pop_phase();
}

void MemoryRecorder::push_phase(std::string_view name) {
  open_.push_back(OpenPhase{std::string(name), boundary_us(), 0});
  if (recording_) list(open_.back());
}

void MemoryRecorder::pop_phase() {
  if (open_.empty()) return;
  if (open_.back().index != 0) phases_[open_.back().index].end_us = boundary_us();
  open_.pop_back();
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
