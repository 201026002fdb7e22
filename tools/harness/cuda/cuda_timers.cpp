#include "tools/harness/cuda/cuda_timers.hpp"

#include <utility>

#include <unistd.h>

#include "kernels/runtime/check.hpp"
#include "tools/harness/cuda/stream_kernels.hpp"
#include "tools/harness/detail/steady_timer.hpp"

namespace warpmeter::harness::detail {

CudaCacheFlush::CudaCacheFlush(const Context& context, std::size_t bytes)
    : context_(context),
      bytes_(bytes),
      clean_bytes_(kCleanCaches * (bytes / 16 * 16)),
      buffer_(context.allocator->allocate_for_harness(bytes)) {
  try {
    clean_ = context_.allocator->allocate_for_harness(clean_bytes_);
  } catch (...) {
    context_.allocator->free_for_harness(buffer_, bytes_);
    throw;
  }
  fill_bytes(clean_, context_.device(), 0, clean_bytes_, context_.stream);
}

CudaCacheFlush::~CudaCacheFlush() {
  context_.allocator->free_for_harness(clean_, clean_bytes_);
  context_.allocator->free_for_harness(buffer_, bytes_);
}

void CudaCacheFlush::flush() {
  fill_bytes(buffer_, context_.device(), 0, bytes_, context_.stream);
  read_through_cache(clean_, clean_bytes_, buffer_, context_.stream);
}

std::unique_ptr<Timer> make_cuda_timer(const Context& context, TimerKind kind, bool cold,
                                       const std::function<void(const std::string&)>& warn) {
  WM_CHECK(context.allocator != nullptr, "timing on a GPU needs an allocator for the harness's buffers");
  const DeviceGuard guard(context.device());
  std::unique_ptr<CacheFlush> flush;
  const std::size_t cache_bytes = properties(context.device()).last_level_cache_bytes;
  if (cold && cache_bytes > 0) {
    flush = std::make_unique<CudaCacheFlush>(context, cache_bytes);
    flush->flush();
  }
  auto probe = make_cuda_clock_probe(context);
  if (kind == TimerKind::wall) {
    return std::make_unique<SteadyTimer>(context.stream, steady_clock(), std::move(flush), std::move(probe));
  }
  std::unique_ptr<Blocker> blocker;
  if (const std::string reason = serialized_launches_reason(environ); reason.empty()) {
    blocker = make_cuda_blocker(context.stream);
  } else {
    const bool watched = !watching_variable(environ).empty();
    warn(reason + ": the stream is not held while work is enqueued, so launch overhead is in the device times" +
         (watched ? "; ceilings are not measured" : ""));
  }
  return std::make_unique<EventTimer>(context.stream, std::move(flush), std::move(probe), std::move(blocker), warn);
}

}  // namespace warpmeter::harness::detail
