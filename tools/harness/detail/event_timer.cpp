#include "tools/harness/detail/event_timer.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

namespace warpmeter::harness::detail {
namespace {

/// Releases on every way out: an exception from enqueue() must not leave the stream held.
class ReleaseGuard {
 public:
  explicit ReleaseGuard(Blocker* blocker) : blocker_(blocker) {}
  ~ReleaseGuard() {
    if (blocker_ != nullptr) blocker_->release();
  }
  ReleaseGuard(const ReleaseGuard&) = delete;
  ReleaseGuard& operator=(const ReleaseGuard&) = delete;

 private:
  Blocker* blocker_;
};

}  // namespace

EventTimer::EventTimer(StreamView stream, std::unique_ptr<CacheFlush> flush, std::unique_ptr<ClockProbe> probe,
                       std::unique_ptr<Blocker> blocker, Warn warn)
    : stream_(stream),
      flush_(std::move(flush)),
      probe_(std::move(probe)),
      blocker_(std::move(blocker)),
      warn_(std::move(warn)),
      begin_event_(stream.device),
      end_event_(stream.device) {}

void EventTimer::begin() {
  first_sample_ = true;
  may_hold_ = gave_up_ < 2;
}

void EventTimer::run(const Phase& phase) {
  phase.enqueue();
  synchronize(stream_);
}

Reading EventTimer::sample(const Phase& phase, std::int64_t calls) {
  const bool held = blocker_ && may_hold_ && phase.launches * calls <= kMostHeldLaunches;
  if (flush_) flush_->flush();
  synchronize(stream_);
  if (probe_) probe_->begin(stream_);
  if (held) blocker_->hold(stream_, first_sample_ ? kFirstHoldNs : kHoldNs);
  {
    const ReleaseGuard guard(held ? blocker_.get() : nullptr);
    begin_event_.record(stream_);
    for (std::int64_t call = 0; call < calls; ++call) phase.enqueue();
    end_event_.record(stream_);
    if (probe_) probe_->end(stream_);
  }
  synchronize(stream_);
  first_sample_ = false;

  if (held && blocker_->gave_up()) {
    may_hold_ = false;
    ++gave_up_;
    if (warn_) {
      warn_(
          "the stream could not be held while a phase was enqueued (something waits for the device in between), so "
          "launch overhead is in its device time; look for a profiler, CUDA_LAUNCH_BLOCKING or a synchronization");
    }
    if (phase.prepare) phase.prepare();
    return sample(phase, calls);
  }

  Reading reading;
  reading.milliseconds = elapsed_ms(begin_event_, end_event_);
  if (!(reading.milliseconds > 0)) reading.milliseconds = kResolutionMs;  // an upper bound, never 0
  if (probe_) {
    const ClockProbe::Window window = probe_->read();
    reading.cycles = window.cycles;
    reading.window_ns = window.ns;
    reading.throttled = is_throttled(window, probe_->resolution_ns(), probe_->max_clock_mhz());
  }
  return reading;
}

namespace {

/// Calls found(name, value) for each variable that has a value, until it says true.
template <class Found>
void find_variable(const char* const* environment, Found found) {
  if (environment == nullptr) return;
  for (; *environment != nullptr; ++environment) {
    const std::string_view entry(*environment);
    const auto equals = entry.find('=');
    if (equals == std::string_view::npos || equals + 1 == entry.size()) continue;
    if (found(entry.substr(0, equals), entry.substr(equals + 1))) return;
  }
}

}  // namespace

std::string_view watching_variable(const char* const* environment) {
  // What each sets in the process that it starts: nsys, ncu, compute-sanitizer, and CUPTI-based tools.
  constexpr std::string_view kPrefixes[] = {"NSYS_PROFILING_SESSION_ID", "NV_NSIGHT_INJECTION_",
                                            "NV_COMPUTE_PROFILER_PERFWORKS_DIR", "NV_SANITIZER_INJECTION_",
                                            "CUDA_INJECTION64_PATH"};
  std::string_view variable;
  find_variable(environment, [&](std::string_view name, std::string_view) {
    const bool watches = std::any_of(std::begin(kPrefixes), std::end(kPrefixes), [&](std::string_view prefix) {
      return prefix.back() == '_' ? name.substr(0, prefix.size()) == prefix : name == prefix;
    });
    if (watches) variable = name;
    return watches;
  });
  return variable;
}

std::string serialized_launches_reason(const char* const* environment) {
  bool blocking = false;
  find_variable(environment, [&](std::string_view name, std::string_view value) {
    return blocking = name == "CUDA_LAUNCH_BLOCKING" && value != "0";
  });
  if (blocking) return "CUDA_LAUNCH_BLOCKING makes launches synchronous";
  const std::string_view variable = watching_variable(environment);
  if (variable.empty()) return "";
  return "a profiler or checker watches this process (" + std::string(variable) + ")";
}

}  // namespace warpmeter::harness::detail
