#include "tests/kernels/runtime/fake_backend.hpp"

#include <algorithm>

#include <gtest/gtest.h>

#include "kernels/runtime/check.hpp"

namespace warpmeter::test {

DeviceProperties FakeBackend::properties(int /*index*/) const {
  return {};
}
std::size_t FakeBackend::total_memory(int /*index*/) const {
  return capacity_;
}
std::size_t FakeBackend::free_memory(int /*index*/) const {
  return capacity_ - used;
}
int FakeBackend::make_current(int /*index*/) const {
  return -1;
}
void FakeBackend::restore_current(int /*previous*/) const noexcept {}
void FakeBackend::synchronize(int /*index*/) const {
  completed_ = recorded_;
}

void* FakeBackend::allocate(int /*index*/, std::size_t bytes) {
  asked.push_back(bytes);
  if (bytes > capacity_ - used) return nullptr;
  used += bytes;
  // First fit in the address space, so that neighbouring segments touch and addresses come back.
  std::uintptr_t address = next_;
  for (const auto& [begin, size] : segments) {
    if (begin - address >= bytes) break;
    address = begin + size;
  }
  segments.emplace(address, bytes);
  return reinterpret_cast<void*>(address);  // NOLINT: an address that nobody reads
}

void FakeBackend::free(int /*index*/, void* pointer, std::size_t bytes) noexcept {
  const auto found = segments.find(reinterpret_cast<std::uintptr_t>(pointer));
  if (found == segments.end() || found->second != bytes) {
    ADD_FAILURE() << "a segment given back that is not one, or with another size: " << bytes;
    return;
  }
  used -= bytes;
  segments.erase(found);
}

void FakeBackend::copy(void*, Device, const void*, Device, std::size_t, int, void*) const {}
void FakeBackend::fill(void*, unsigned char, std::size_t, int, void*) const {}
void* FakeBackend::create_stream(int /*index*/) const {
  return nullptr;
}
void FakeBackend::destroy_stream(int /*index*/, void* /*stream*/) const noexcept {}
void FakeBackend::synchronize_stream(int /*index*/, void* /*stream*/) const {}

void* FakeBackend::create_event(int /*index*/, bool timing) const {
  EXPECT_FALSE(timing) << "timed events slow the stream down";
  ++const_cast<FakeBackend*>(this)->live_events;
  return new Event;
}
void FakeBackend::destroy_event(int /*index*/, void* event) const noexcept {
  --const_cast<FakeBackend*>(this)->live_events;
  delete static_cast<Event*>(event);
}
void FakeBackend::record_event(int /*index*/, void* event, void* /*stream*/) const {
  if (fail_events) throw DeviceError("the context is lost", true);
  static_cast<Event*>(event)->ticket = ++recorded_;
}
bool FakeBackend::query_event(int /*index*/, void* event) const {
  return static_cast<Event*>(event)->ticket <= completed_;
}
void FakeBackend::synchronize_event(int /*index*/, void* event) const {
  ++const_cast<FakeBackend*>(this)->synchronized_events;
  completed_ = std::max(completed_, static_cast<Event*>(event)->ticket);
}
void FakeBackend::wait_event(int /*index*/, void* /*stream*/, void* /*event*/) const {}
double FakeBackend::elapsed_ms(int /*index*/, void* /*begin*/, void* /*end*/) const {
  return 0;
}

}  // namespace warpmeter::test
