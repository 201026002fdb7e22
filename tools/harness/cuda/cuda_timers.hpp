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

/// Writes over a buffer of exactly the L2's size, allocated once as harness memory. As in nvbench.
class CudaCacheFlush final : public CacheFlush {
 public:
  CudaCacheFlush(const Context& context, std::size_t bytes);
  ~CudaCacheFlush() override;
  CudaCacheFlush(const CudaCacheFlush&) = delete;
  CudaCacheFlush& operator=(const CudaCacheFlush&) = delete;

  void flush() override;

 private:
  Context context_;
  std::size_t bytes_;
  void* buffer_;
};

}  // namespace warpmeter::harness::detail
