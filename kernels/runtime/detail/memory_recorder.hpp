#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/runtime/allocator.hpp"

namespace warpmeter::detail {

/// The event history: a ring of the last `capacity` events and the phases they fall in. Not thread-safe; the
/// allocator's lock covers it.
class MemoryRecorder {
 public:
  MemoryRecorder();

  void start(std::size_t capacity, bool with_frames);
  void stop() { recording_ = false; }
  [[nodiscard]] bool recording() const noexcept { return recording_; }
  [[nodiscard]] bool with_frames() const noexcept { return recording_ && with_frames_; }

  /// Appends `event` with the time, the phase and, where wanted, the calling thread's frames filled in.
  void record(MemoryEvent event);

  void begin_phase(std::string_view name);  ///< ends the open ones
  void end_phase();                         ///< ends the open ones
  void push_phase(std::string_view name);   ///< within the open one
  void pop_phase();                         ///< ends the innermost one

  [[nodiscard]] MemoryHistory history() const;

 private:
  /// An open phase, also while nothing is recorded.
  struct OpenPhase {
    std::string name;
    std::int64_t begin_us;
    std::uint32_t index;  ///< in phases_; 0: it began before this recording
  };
  [[nodiscard]] std::int64_t now_us() const;
  /// A time for a phase's beginning or end: after every event so far, and not after any later one.
  [[nodiscard]] std::int64_t boundary_us();
  void list(OpenPhase& phase);

  bool recording_ = false;
  bool with_frames_ = false;
  std::size_t capacity_ = 0;
  std::size_t oldest_ = 0;  ///< index in events_ once the ring is full
  std::uint64_t dropped_ = 0;
  std::vector<MemoryEvent> events_;
  std::vector<MemoryPhase> phases_{MemoryPhase{}};
  std::vector<OpenPhase> open_;   ///< outermost first
  std::int64_t earliest_us_ = 0;  ///< of the next event
  std::int64_t last_us_ = 0;      ///< of the last event
  std::int64_t epoch_offset_us_ = 0;
};

}  // namespace warpmeter::detail
