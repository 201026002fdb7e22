#include "tools/allreduce_bench/meter.hpp"

#include <algorithm>
#include <utility>

#include <unistd.h>

#include "kernels/runtime/event.hpp"
#include "tools/harness/detail/clock.hpp"
#include "tools/harness/detail/cpu_cache_flush.hpp"
#if WARPMETER_CUDA
#include "tools/harness/cuda/cuda_timers.hpp"
#include "tools/harness/cuda/stream_kernels.hpp"
#include "tools/harness/detail/blocker.hpp"
#include "tools/harness/detail/event_timer.hpp"
#endif

namespace warpmeter::allreduce_bench {
namespace {

using harness::detail::CacheFlush;

double milliseconds(std::int64_t nanoseconds) {
  return static_cast<double>(std::max<std::int64_t>(nanoseconds, 1)) * 1e-6;
}

/// The host's clock around the calls and whatever it takes until they are done.
class HostMeter final : public Meter {
 public:
  HostMeter(StreamView stream, std::unique_ptr<CacheFlush> flush) : stream_(stream), flush_(std::move(flush)) {}

  void run(const Call& call) override {
    call(stream_);
    synchronize(stream_);
  }
  Reading time(const Call& call, std::int64_t calls, const Together& together) override {
    harness::detail::Clock& clock = harness::detail::steady_clock();
    if (flush_) flush_->flush();
    synchronize(stream_);
    together();
    const std::int64_t begin = clock.now_ns();
    for (std::int64_t i = 0; i < calls; ++i) call(stream_);
    synchronize(stream_);
    return {begin, milliseconds(clock.now_ns() - begin)};
  }

 private:
  StreamView stream_;
  std::unique_ptr<CacheFlush> flush_;
};

#if WARPMETER_CUDA
/// Events in the stream, as Meter says.
class StreamMeter final : public Meter {
 public:
  StreamMeter(StreamView stream, std::unique_ptr<CacheFlush> flush, std::unique_ptr<harness::detail::Blocker> blocker,
              collectives::Communicator& group)
      : stream_(stream),
        flush_(std::move(flush)),
        blocker_(std::move(blocker)),
        group_(group),
        begin_(stream.device),
        end_(stream.device) {}

  void run(const Call& call) override {
    if (!events_ready_) {  // what the first record or wait would set up must not happen behind a held stream
      begin_.record(stream_);
      end_.record(stream_);
      events_ready_ = true;
    }
    (void)group_.barrier_async(stream_);
    call(stream_);
    synchronize(stream_);
  }

  Reading time(const Call& call, std::int64_t calls, const Together& together) override {
    if (flush_) flush_->flush();
    synchronize(stream_);
    const bool hold = blocker_ != nullptr && calls <= kMostHeldCalls;
    if (hold) blocker_->hold(stream_, kHoldNs);
    std::int64_t arrival = 0;
    {
      struct Release {
        harness::detail::Blocker* blocker;
        ~Release() {
          if (blocker != nullptr) blocker->release();
        }
      };
      const Release release{hold ? blocker_.get() : nullptr};
      (void)group_.barrier_async(stream_);
      begin_.record(stream_);
      for (std::int64_t i = 0; i < calls; ++i) call(stream_);
      end_.record(stream_);
      if (hold) together();
      arrival = harness::detail::steady_clock().now_ns();
    }
    end_.synchronize();
    synchronize(stream_);
    return {arrival, std::max(elapsed_ms(begin_, end_), kResolutionMs)};
  }
  [[nodiscard]] std::int64_t least_warm_up() const override { return 1; }

 private:
  static constexpr std::int64_t kHoldNs = 10'000'000'000;
  static constexpr std::int64_t kMostHeldCalls = 200;  // a stream's queue is finite
  static constexpr double kResolutionMs = 0.5e-3;      // of an event

  StreamView stream_;
  std::unique_ptr<CacheFlush> flush_;
  std::unique_ptr<harness::detail::Blocker> blocker_;
  collectives::Communicator& group_;
  Event begin_, end_;
  bool events_ready_ = false;
};
#endif

}  // namespace

std::unique_ptr<Meter> make_meter(harness::Session& session, collectives::Communicator& group) {
  const harness::Settings& settings = session.settings();
  const Context context = session.context();
  const bool cold = settings.cache == harness::CacheState::cold;
  std::unique_ptr<CacheFlush> flush;
  if (context.device().is_cpu()) {
    if (cold) flush = std::make_unique<harness::detail::CpuCacheFlush>(*context.allocator);
    return std::make_unique<HostMeter>(context.stream, std::move(flush));
  }
#if WARPMETER_CUDA
  const std::size_t cache_bytes = session.device_properties().last_level_cache_bytes;
  if (cold && cache_bytes > 0) flush = std::make_unique<harness::detail::CudaCacheFlush>(context, cache_bytes);
  if (settings.timer == harness::TimerKind::device) {
    std::unique_ptr<harness::detail::Blocker> blocker;
    if (const std::string reason = harness::detail::serialized_launches_reason(environ); reason.empty()) {
      blocker = harness::detail::make_cuda_blocker(context.stream);
    } else {
      session.warn(reason + ": the streams are not held while work is enqueued, so launches are in the device times");
    }
    return std::make_unique<StreamMeter>(context.stream, std::move(flush), std::move(blocker), group);
  }
#endif
  static_cast<void>(group);
  return std::make_unique<HostMeter>(context.stream, std::move(flush));
}

}  // namespace warpmeter::allreduce_bench
