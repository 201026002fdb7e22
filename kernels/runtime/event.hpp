#pragma once

#include "kernels/runtime/stream.hpp"

namespace warpmeter {

/// A point in a stream's time. On the CPU: the steady clock when record() is called.
class Event {
 public:
  explicit Event(Device device);
  ~Event();
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(StreamView stream);
  /// True when everything before the record is done.
  [[nodiscard]] bool query() const;
  void synchronize() const;
  /// Makes work enqueued on `stream` from now on wait for this event.
  void block(StreamView stream) const;

  /// Milliseconds from `begin` to `end`, both recorded and complete.
  friend double elapsed_ms(const Event& begin, const Event& end);

 private:
  Device device_;
  void* handle_ = nullptr;  ///< the backend's: cudaEvent_t, or a clock reading
};

[[nodiscard]] double elapsed_ms(const Event& begin, const Event& end);

}  // namespace warpmeter
