#pragma once

#include <cstddef>
#include <string>

#include "kernels/runtime/device.hpp"

namespace warpmeter::detail {

/// What a kind of device must be able to do: the one seam between the runtime's device-neutral part and CPU or CUDA.
/// `index` is the device's index of that kind; streams and events are opaque handles (null stream: the default one).
/// Everything throws DeviceError when the device or its driver fails, except what is noexcept.
class Backend {
 public:
  virtual ~Backend() = default;

  [[nodiscard]] virtual int device_count() const noexcept = 0;
  /// Why device_count() is 0; empty otherwise.
  [[nodiscard]] virtual std::string unavailable_reason() const = 0;
  [[nodiscard]] virtual DeviceProperties properties(int index) const = 0;
  [[nodiscard]] virtual std::size_t total_memory(int index) const = 0;
  [[nodiscard]] virtual std::size_t free_memory(int index) const = 0;

  /// Makes `index` current and returns the previous one; restore_current() puts it back.
  virtual int make_current(int index) const = 0;
  virtual void restore_current(int previous) const noexcept = 0;
  virtual void synchronize(int index) const = 0;

  /// Raw memory, whole segments at a time: a multiple of 2 MiB, aligned to 4096 B at least. Null when the device has
  /// no room (never an exception).
  [[nodiscard]] virtual void* allocate(int index, std::size_t bytes) = 0;
  virtual void free(int index, void* pointer, std::size_t bytes) noexcept = 0;

  /// In the stream's order. `copy` has at least one side on this kind of device.
  virtual void copy(void* destination, Device destination_device, const void* source, Device source_device,
                    std::size_t bytes, int index, void* stream) const = 0;
  virtual void fill(void* destination, unsigned char value, std::size_t bytes, int index, void* stream) const = 0;

  [[nodiscard]] virtual void* create_stream(int index) const = 0;
  virtual void destroy_stream(int index, void* stream) const noexcept = 0;
  virtual void synchronize_stream(int index, void* stream) const = 0;

  /// An event that can be timed when `timing`. query_event: true when all before the last record is done.
  [[nodiscard]] virtual void* create_event(int index, bool timing) const = 0;
  virtual void destroy_event(int index, void* event) const noexcept = 0;
  virtual void record_event(int index, void* event, void* stream) const = 0;
  [[nodiscard]] virtual bool query_event(int index, void* event) const = 0;
  virtual void synchronize_event(int index, void* event) const = 0;
  virtual void wait_event(int index, void* stream, void* event) const = 0;
  [[nodiscard]] virtual double elapsed_ms(int index, void* begin, void* end) const = 0;
};

/// The backend of a kind. Throws DeviceError for one that this build does not have.
[[nodiscard]] Backend& backend(DeviceKind kind);
/// Null for a kind that this build does not have.
[[nodiscard]] Backend* find_backend(DeviceKind kind) noexcept;

[[nodiscard]] Backend& backend_cpu() noexcept;
[[nodiscard]] Backend& backend_cuda() noexcept;  // only where CUDA is built in

}  // namespace warpmeter::detail
