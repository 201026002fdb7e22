#pragma once

#include "kernels/runtime/allocator.hpp"
#include "kernels/runtime/stream.hpp"

namespace warpmeter {

/// What an operation runs on: passed down instead of globals. Borrows both; cheap to copy.
struct Context {
  StreamView stream;
  CachingAllocator* allocator = nullptr;

  [[nodiscard]] Device device() const noexcept { return stream.device; }
};

}  // namespace warpmeter
