#include "kernels/runtime/event.hpp"

#include <utility>

#include "kernels/runtime/check.hpp"
#include "kernels/runtime/detail/backend.hpp"

namespace warpmeter {

Event::Event(Device device) : device_(device), handle_(detail::backend(device.kind).create_event(device.index, true)) {}

Event::~Event() {
  if (handle_ != nullptr) detail::find_backend(device_.kind)->destroy_event(device_.index, handle_);
}

Event::Event(Event&& other) noexcept : device_(other.device_), handle_(std::exchange(other.handle_, nullptr)) {}

Event& Event::operator=(Event&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(handle_, other.handle_);
  return *this;
}

void Event::record(StreamView stream) {
  WM_CHECK(stream.device == device_, "event of " + name(device_) + ", stream of " + name(stream.device));
  detail::backend(device_.kind).record_event(device_.index, handle_, stream.handle);
}

bool Event::query() const {
  return detail::backend(device_.kind).query_event(device_.index, handle_);
}

void Event::synchronize() const {
  detail::backend(device_.kind).synchronize_event(device_.index, handle_);
}

void Event::block(StreamView stream) const {
  if (stream.device.kind != device_.kind) {
    synchronize();  // work on the CPU runs in the calling thread, so that thread waits
    return;
  }
  detail::backend(device_.kind).wait_event(stream.device.index, stream.handle, handle_);
}

double elapsed_ms(const Event& begin, const Event& end) {
  WM_CHECK(begin.device_ == end.device_, "events of " + name(begin.device_) + " and " + name(end.device_));
  return detail::backend(begin.device_.kind).elapsed_ms(begin.device_.index, begin.handle_, end.handle_);
}

}  // namespace warpmeter
