#pragma once

#include <atomic>
#include <cstdint>

namespace warpmeter::collectives::detail {

/// A counter in shared memory that one process raises and others wait for. On a pair of cache lines of its own (the
/// processor fetches lines in pairs). Counts wrap.
struct alignas(128) SharedFlag {
  std::atomic<std::uint32_t> value{0};
  std::atomic<std::uint32_t> sleepers{0};  ///< more than are there is only a needless system call
  std::atomic<std::int32_t> core{-1};      ///< where the one that raises it was when it last did

  /// Makes everything written before visible to those that see the new value.
  void publish(std::uint32_t count) noexcept;
  [[nodiscard]] bool reached(std::uint32_t count) const noexcept {
    return static_cast<std::int32_t>(value.load(std::memory_order_acquire) - count) >= 0;
  }
  /// Sleeps until the flag has left what is under `count`, or at most `milliseconds`; may return early.
  void sleep(std::uint32_t count, int milliseconds) noexcept;
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free, "usable between processes");

/// The core that the calling thread is on; -1 where the system does not say.
[[nodiscard]] int current_core() noexcept;

/// A breath of the processor between two looks at a flag.
inline void spin_pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace warpmeter::collectives::detail
