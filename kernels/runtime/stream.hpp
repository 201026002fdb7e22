#pragma once

#include "kernels/runtime/device.hpp"

namespace warpmeter {

/// A borrowed stream: the device and CUDA's handle (null: the default stream). On the CPU work runs inline: a name.
struct StreamView {
  Device device;
  void* handle = nullptr;  ///< cudaStream_t
  friend constexpr bool operator==(const StreamView&, const StreamView&) noexcept = default;
};

/// Waits until the stream's work is done. Throws DeviceError. A no-op on the CPU.
void synchronize(StreamView stream);

/// Owns a stream. On the CPU work executes when enqueued, so the stream is a name only.
class Stream {
 public:
  explicit Stream(Device device);
  ~Stream();
  Stream(Stream&& other) noexcept;
  Stream& operator=(Stream&& other) noexcept;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  [[nodiscard]] StreamView view() const noexcept { return view_; }
  operator StreamView() const noexcept { return view_; }  // NOLINT: a borrowed view, like string -> string_view

 private:
  StreamView view_;
};

/// Copies between any two devices, in `stream`'s order; synchronous where one side is pageable host memory.
void copy_bytes(void* destination, Device destination_device, const void* source, Device source_device,
                std::size_t bytes, StreamView stream);

/// Sets `bytes` bytes to `value`, in `stream`'s order.
void fill_bytes(void* destination, Device device, unsigned char value, std::size_t bytes, StreamView stream);

}  // namespace warpmeter
