#include "kernels/runtime/stream.hpp"

#include <utility>

#include "kernels/runtime/check.hpp"
#include "kernels/runtime/detail/backend.hpp"

namespace warpmeter {

void synchronize(StreamView stream) {
  detail::backend(stream.device.kind).synchronize_stream(stream.device.index, stream.handle);
}

Stream::Stream(Device device) : view_{device, detail::backend(device.kind).create_stream(device.index)} {}

Stream::~Stream() {
  if (view_.handle != nullptr) {
    detail::find_backend(view_.device.kind)->destroy_stream(view_.device.index, view_.handle);
  }
}

Stream::Stream(Stream&& other) noexcept : view_(other.view_) {
  other.view_.handle = nullptr;
}

Stream& Stream::operator=(Stream&& other) noexcept {
  std::swap(view_, other.view_);
  return *this;
}

void copy_bytes(void* destination, Device destination_device, const void* source, Device source_device,
                std::size_t bytes, StreamView stream) {
  if (bytes == 0) return;
  // The backend of whichever side is not the CPU does the copy, on the given stream where that is one of its own.
  const Device side = destination_device.is_cuda() ? destination_device : source_device;
  const bool own_stream = stream.device.kind == side.kind;
  WM_CHECK(own_stream || stream.device.is_cpu(), "a copy between host buffers in a CUDA stream's order");
  const int index = own_stream ? stream.device.index : side.index;
  void* const handle = own_stream ? stream.handle : nullptr;
  detail::backend(side.kind).copy(destination, destination_device, source, source_device, bytes, index, handle);
}

void fill_bytes(void* destination, Device device, unsigned char value, std::size_t bytes, StreamView stream) {
  if (bytes == 0) return;
  WM_CHECK(stream.device == device, "stream of " + name(stream.device) + ", memory of " + name(device));
  detail::backend(device.kind).fill(destination, value, bytes, device.index, stream.handle);
}

}  // namespace warpmeter
