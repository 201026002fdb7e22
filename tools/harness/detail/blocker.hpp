#pragma once

#include <cstdint>

#include "kernels/runtime/stream.hpp"

namespace warpmeter::harness::detail {

/// Holds a stream while work is enqueued behind it.
class Blocker {
 public:
  virtual ~Blocker() = default;
  /// Enqueues a wait for release(), which gives up by itself after `limit_ns`.
  virtual void hold(StreamView stream, std::int64_t limit_ns) = 0;
  virtual void release() noexcept = 0;
  /// Whether the last hold gave up. After the stream is synchronized.
  [[nodiscard]] virtual bool gave_up() const noexcept = 0;
};

}  // namespace warpmeter::harness::detail
