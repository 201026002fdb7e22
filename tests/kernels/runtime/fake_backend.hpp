#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "kernels/runtime/detail/backend.hpp"

namespace warpmeter::test {

/// A device of `capacity` bytes that exists only as addresses; its events complete when the test says so.
class FakeBackend final : public detail::Backend {
 public:
  explicit FakeBackend(std::size_t capacity) : capacity_(capacity) {}

  std::size_t used = 0;
  int live_events = 0;
  int synchronized_events = 0;
  bool fail_events = false;  ///< recording throws, as after a lost context
  std::map<std::uintptr_t, std::size_t> segments;
  std::vector<std::size_t> asked;  ///< every allocate()'s bytes, refused ones too

  /// Everything recorded so far is done.
  void complete_events() { completed_ = recorded_; }

  [[nodiscard]] int device_count() const noexcept override { return 1; }
  [[nodiscard]] std::string unavailable_reason() const override { return {}; }
  [[nodiscard]] DeviceProperties properties(int index) const override;
  [[nodiscard]] std::size_t total_memory(int index) const override;
  [[nodiscard]] std::size_t free_memory(int index) const override;
  int make_current(int index) const override;
  void restore_current(int previous) const noexcept override;
  void synchronize(int index) const override;
  [[nodiscard]] void* allocate(int index, std::size_t bytes) override;
  void free(int index, void* pointer, std::size_t bytes) noexcept override;
  void copy(void* destination, Device destination_device, const void* source, Device source_device, std::size_t bytes,
            int index, void* stream) const override;
  void fill(void* destination, unsigned char value, std::size_t bytes, int index, void* stream) const override;
  [[nodiscard]] void* create_stream(int index) const override;
  void destroy_stream(int index, void* stream) const noexcept override;
  void synchronize_stream(int index, void* stream) const override;
  [[nodiscard]] void* create_event(int index, bool timing) const override;
  void destroy_event(int index, void* event) const noexcept override;
  void record_event(int index, void* event, void* stream) const override;
  [[nodiscard]] bool query_event(int index, void* event) const override;
  void synchronize_event(int index, void* event) const override;
  void wait_event(int index, void* stream, void* event) const override;
  [[nodiscard]] double elapsed_ms(int index, void* begin, void* end) const override;

 private:
  struct Event {
    long ticket = 0;
  };
  std::size_t capacity_;
  std::uintptr_t next_ = std::uintptr_t{1} << 44;
  mutable long recorded_ = 0;
  mutable long completed_ = 0;
};

}  // namespace warpmeter::test
