#pragma once

#include <cstddef>
#include <utility>

#include "kernels/runtime/allocator.hpp"

namespace warpmeter::ceilings::detail {

/// Owns a block of the allocator's harness memory.
class HarnessBuffer {
 public:
  HarnessBuffer() = default;
  /// Throws OutOfMemory.
  HarnessBuffer(CachingAllocator& allocator, std::size_t bytes)
      : allocator_(&allocator), data_(allocator.allocate_for_harness(bytes)), bytes_(bytes) {}
  ~HarnessBuffer() {
    if (data_ != nullptr) allocator_->free_for_harness(data_, bytes_);
  }
  HarnessBuffer(HarnessBuffer&& other) noexcept
      : allocator_(other.allocator_), data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  HarnessBuffer& operator=(HarnessBuffer&& other) noexcept {
    std::swap(allocator_, other.allocator_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  HarnessBuffer(const HarnessBuffer&) = delete;
  HarnessBuffer& operator=(const HarnessBuffer&) = delete;

  [[nodiscard]] void* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  CachingAllocator* allocator_ = nullptr;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace warpmeter::ceilings::detail
