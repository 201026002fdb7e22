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

  void begin_phase(std::string_view name);
  void end_phase();

  [[nodiscard]] MemoryHistory history() const;

 private:
  [[nodiscard]] std::int64_t now_us() const;

  bool recording_ = false;
  bool with_frames_ = false;
  std::size_t capacity_ = 0;
  std::size_t oldest_ = 0;  ///< index in events_ once the ring is full
  std::uint64_t dropped_ = 0;
  std::vector<MemoryEvent> events_;
  std::vector<MemoryPhase> phases_{MemoryPhase{}};
  bool phase_open_ = false;
  std::uint32_t phase_ = 0;  ///< index of the open phase, 0 between phases
  MemoryPhase open_;         ///< the open phase, also while nothing is recorded
  std::int64_t epoch_offset_us_ = 0;
};

}  // namespace warpmeter::detail
