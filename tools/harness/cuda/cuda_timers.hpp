#pragma once

#include <functional>
#include <memory>
#include <string>

#include "kernels/runtime/context.hpp"
#include "tools/harness/detail/event_timer.hpp"
#include "tools/harness/settings.hpp"

namespace warpmeter::harness::detail {

/// The timer of a CUDA context: events behind a blocker, or the host's clock; both with the clock probe, and with the
/// L2 flushed before each sample when `cold`. Runs each of its own kernels once, since a kernel that is loaded while a
/// stream is held would wait for ever. Throws OutOfMemory, DeviceError.
[[nodiscard]] std::unique_ptr<Timer> make_cuda_timer(const Context& context, TimerKind kind, bool cold,
                                                     const std::function<void(const std::string&)>& warn);

/// Writes over a buffer of exactly the L2's size, as nvbench does, and then reads three times as much that nobody
/// writes: else a sample would begin with an L2 full of lines that it has to write back (40 MB on an H200, 8 us of the
/// 62 that reading 256 MiB takes). Both buffers are allocated once, as harness memory. `bytes`: of the L2.
class CudaCacheFlush final : public CacheFlush {
 public:
  static constexpr std::size_t kCleanCaches = 3;  ///< what surely displaces all lines, whatever the replacement

  CudaCacheFlush(const Context& context, std::size_t bytes);
  ~CudaCacheFlush() override;
  CudaCacheFlush(const CudaCacheFlush&) = delete;
  CudaCacheFlush& operator=(const CudaCacheFlush&) = delete;

  void flush() override;

 private:
  Context context_;
  std::size_t bytes_, clean_bytes_;
  void *buffer_, *clean_ = nullptr;
};

}  // namespace warpmeter::harness::detail
