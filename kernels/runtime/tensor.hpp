#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <vector>

#include "kernels/runtime/context.hpp"
#include "kernels/runtime/dtype.hpp"

namespace warpmeter {

/// Owns one block of a caching allocator, which must outlive it.
class Buffer {
 public:
  Buffer() = default;
  /// Throws OutOfMemory.
  Buffer(const Context& context, std::size_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  [[nodiscard]] void* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  CachingAllocator* allocator_ = nullptr;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// A dense row-major array on a device. Copies share the memory; the last one gives it back.
/// `tf32` is stored as fp32. Sizes and offsets are 64-bit.
class Tensor {
 public:
  Tensor() = default;
  /// Uninitialized memory. Throws OutOfMemory; std::overflow_error when the byte count leaves 63 bits.
  Tensor(const Context& context, std::initializer_list<std::int64_t> shape, DType dtype);
  Tensor(const Context& context, std::span<const std::int64_t> shape, DType dtype);

  [[nodiscard]] bool defined() const noexcept { return buffer_ != nullptr; }
  [[nodiscard]] DType dtype() const noexcept { return dtype_; }
  [[nodiscard]] Device device() const noexcept { return device_; }
  [[nodiscard]] std::span<const std::int64_t> shape() const noexcept { return shape_; }
  [[nodiscard]] std::int64_t size(std::size_t dimension) const;
  [[nodiscard]] std::int64_t elements() const noexcept { return elements_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return static_cast<std::size_t>(elements_) * size_of(dtype_); }

  [[nodiscard]] void* data() const noexcept { return buffer_ ? buffer_->data() : nullptr; }
  /// data() as T*; checks that sizeof(T) is the element size.
  template <class T>
  [[nodiscard]] T* data_as() const {
    check_element_size(sizeof(T));
    return static_cast<T*>(data());
  }

  /// A copy on another device or in other memory of the same one; waits for the copy.
  [[nodiscard]] Tensor to(const Context& context) const;
  /// Sets every byte (poison: 0xFF makes every floating type NaN).
  void fill_bytes(unsigned char value, StreamView stream) const;
  /// Gives this handle's share of the memory back.
  void reset() { *this = Tensor(); }

 private:
  void check_element_size(std::size_t bytes) const;

  std::shared_ptr<Buffer> buffer_;
  std::vector<std::int64_t> shape_;
  std::int64_t elements_ = 0;
  DType dtype_ = DType::fp32;
  Device device_;
};

}  // namespace warpmeter
