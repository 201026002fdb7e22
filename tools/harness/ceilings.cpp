#include "tools/harness/ceilings.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <utility>
#include <vector>

#include <unistd.h>

#include "kernels/ceilings/bandwidth.hpp"
#include "kernels/ceilings/matmul.hpp"
#include "kernels/runtime/allocator.hpp"
#include "tools/harness/detail/event_timer.hpp"

namespace warpmeter::harness {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
constexpr double kFlopsPerMs = 1e9;  ///< of 1 TFLOP/s
constexpr double kBytesPerMs = 1e6;  ///< of 1 GB/s

/// What a variant gets: on a GPU dozens of samples fit in a few hundredths of a second.
constexpr double kCudaSeconds = 0.05;
/// On a CPU every run, however short, would spend seconds on them: only what may be the fastest gets more than a trial.
constexpr double kCpuSeconds = 0.1;
constexpr double kCpuTrialSeconds = 0.02;
constexpr double kPromising = 0.8;  ///< of the best rate of the trials: noise of a busy machine aside

Settings ceiling_settings(Settings settings, double seconds) {
  settings.steps.reset();
  settings.warmup = 0;     // the least time is no first call's
  settings.max_noise = 0;  // and more samples find a smaller one
  settings.max_time_s = seconds;
  settings.timer = TimerKind::device;
  settings.cache = CacheState::hot;  // the buffers are larger than any cache
  return settings;
}

class MeasuredCeilings final : public CeilingSource {
 public:
  MeasuredCeilings(const Context& context, const Settings& settings)
      : context_(context),
        sampler_(context, ceiling_settings(settings, context.device().is_cuda() ? kCudaSeconds : kCpuSeconds),
                 [](const std::string&) {}),
        trial_sampler_(context, ceiling_settings(settings, kCpuTrialSeconds), [](const std::string&) {}) {}

  double matmul_tflops(ComputePath path) override {
    const auto large = [&] { return best([&] { return ceilings::make_matmul(context_, path); }); };
    if (context_.device().is_cuda()) return large() / kFlopsPerMs;
    const double cached = best([&] { return ceilings::make_cached_matmul(context_, path); });
    if (path == ComputePath::half) return cached / kFlopsPerMs;  // the library has none
    return std::fmax(cached, large()) / kFlopsPerMs;             // of the one that there is room for
  }
  double copy_gbps() override {
    return best([&] { return ceilings::make_copy(context_); }) / kBytesPerMs;
  }
  double read_gbps() override {
    return best([&] { return ceilings::make_read(context_); }) / kBytesPerMs;
  }

 private:
  /// The best amount a millisecond; the workload's memory is given back before it returns.
  template <class Make>
  double best(Make make) {
    try {
      const auto workload = make();
      const auto rate = [&](Sampler& sampler, int variant) {
        Phase phase;
        phase.enqueue = [&] { workload->enqueue(variant); };
        return workload->amount() / sampler.measure(phase).statistics().min_ms;
      };
      const auto variants = static_cast<std::size_t>(workload->variants());
      std::vector<double> trials(variants, 1);
      if (!context_.device().is_cuda() && variants > 1) {
        for (std::size_t i = 0; i < variants; ++i) trials[i] = rate(trial_sampler_, static_cast<int>(i));
      }
      const double promising = kPromising * *std::max_element(trials.begin(), trials.end());
      double best_rate = 0;
      for (std::size_t i = 0; i < variants; ++i) {
        if (trials[i] >= promising) best_rate = std::max(best_rate, rate(sampler_, static_cast<int>(i)));
      }
      return best_rate;
    } catch (const OutOfMemory&) {
      return kUnknown;
    }
  }

  Context context_;
  Sampler sampler_, trial_sampler_;
};

/// Of a process that a profiler or checker watches: what it would find there are the watcher's rates, and it would have
/// to go through hundreds of the library's calls first.
class UnmeasuredCeilings final : public CeilingSource {
 public:
  double matmul_tflops(ComputePath) override { return kUnknown; }
  double copy_gbps() override { return kUnknown; }
  double read_gbps() override { return kUnknown; }
};

double memory_rate(MemoryRate rate, Ceilings& ceilings) {
  switch (rate) {
    case MemoryRate::copy:
      return ceilings.copy_gbps();
    case MemoryRate::read:
      return ceilings.read_gbps();
    case MemoryRate::best:
      break;
  }
  return ceilings.memory_gbps();
}

struct LeastTimes {
  double compute_ms, memory_ms;
};

/// Nothing for no work or without a ceiling.
std::optional<LeastTimes> least_times(const Work& work, Ceilings& ceilings) {
  if (work.flops <= 0 && work.bytes <= 0) return std::nullopt;
  // A part without work needs no ceiling: a copy's row measures no matmul.
  const double compute_ms = work.flops > 0 ? work.flops / (ceilings.matmul_tflops(work.path) * kFlopsPerMs) : 0;
  const double memory_ms = work.bytes > 0 ? work.bytes / (memory_rate(work.memory, ceilings) * kBytesPerMs) : 0;
  if (!std::isfinite(compute_ms) || !std::isfinite(memory_ms)) return std::nullopt;
  return LeastTimes{compute_ms, memory_ms};
}

std::string printed(const char* format, double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), format, value);
  return text.data();
}

std::string percent(double share) {
  return printed("%.1f%%", 100 * share);
}

}  // namespace

struct Ceilings::Impl {
  std::unique_ptr<CeilingSource> source;
  Device device = Device::cuda();  ///< where a source of its own stands for: paths are told apart
  std::size_t hot_cache_bytes = 0;
  std::size_t unwritten_bytes = 0;
  reports::Object measured;

  template <class Measure>
  double once(const std::string& field, Measure measure) {
    if (const reports::Value* known = measured.find(field)) return known->as_number().value_or(kUnknown);
    const double rate = measure();
    if (std::isfinite(rate)) measured.set(field, rate);
    return rate;
  }
};

Ceilings::Ceilings(const Context& context, const Settings& settings) : impl_(std::make_unique<Impl>()) {
  if (context.device().is_cuda() && !detail::watching_variable(environ).empty()) {
    impl_->source = std::make_unique<UnmeasuredCeilings>();
  } else {
    impl_->source = std::make_unique<MeasuredCeilings>(context, settings);
  }
  impl_->device = context.device();
  const bool hot = settings.cache == CacheState::hot;
  if (hot) impl_->hot_cache_bytes = properties(context.device()).last_level_cache_bytes;
  if (!hot && impl_->device.is_cuda()) impl_->unwritten_bytes = properties(context.device()).last_level_cache_bytes;
}

Ceilings::Ceilings(std::unique_ptr<CeilingSource> source, std::size_t hot_cache_bytes, std::size_t unwritten_bytes)
    : impl_(std::make_unique<Impl>()) {
  impl_->source = std::move(source);
  impl_->hot_cache_bytes = hot_cache_bytes;
  impl_->unwritten_bytes = unwritten_bytes;
}

Ceilings::~Ceilings() = default;

double Ceilings::matmul_tflops(ComputePath path) {
  const ComputePath measured = ceilings::measured_path(path, impl_->device);
  const double rate = impl_->once("matmul_" + std::string(name(measured)) + "_tflops",
                                  [&] { return impl_->source->matmul_tflops(measured); });
  return path == ComputePath::tf32x3 && measured == ComputePath::tf32 ? rate / 3 : rate;
}

double Ceilings::copy_gbps() {
  return impl_->once("copy_gbps", [&] { return impl_->source->copy_gbps(); });
}

double Ceilings::read_gbps() {
  return impl_->once("read_gbps", [&] { return impl_->source->read_gbps(); });
}

double Ceilings::memory_gbps() {
  const double copy = copy_gbps();
  const double read = read_gbps();
  return std::isfinite(copy) && std::isfinite(read) ? std::max(copy, read) : kUnknown;
}

std::size_t Ceilings::hot_cache_bytes() const {
  return impl_->hot_cache_bytes;
}

std::size_t Ceilings::unwritten_bytes() const {
  return impl_->unwritten_bytes;
}

reports::Object Ceilings::measured() const {
  return impl_->measured;
}

std::optional<std::string> Ceilings::memory_drift() {
  constexpr double kWithin = 1.125;
  const auto drift = [&](const char* field, const char* verb, auto measure) -> std::optional<std::string> {
    const reports::Value* known = impl_->measured.find(field);
    if (known == nullptr) return std::nullopt;
    const double before = known->as_number().value_or(kUnknown), now = measure();
    if (!(std::max(before, now) > kWithin * std::min(before, now))) return std::nullopt;  // nor where one is unknown
    return "memory is " + std::string(verb) + " at " + printed("%.4g", now) + " GB/s now, and was at " +
           printed("%.4g", before) +
           " when this ceiling was measured: shares of it may be as far off; repeat the run, " +
           "or measure fewer rows at a time";
  };
  if (auto text = drift("copy_gbps", "copied", [&] { return impl_->source->copy_gbps(); })) return text;
  return drift("read_gbps", "read", [&] { return impl_->source->read_gbps(); });
}

void Ceilings::adopt(const reports::Object& known) {
  for (const auto& [field, rate] : known.fields()) {
    if (rate.as_number()) impl_->measured.set(field, rate);
  }
}

std::optional<bool> bound_by_memory(const Work& work, Ceilings& ceilings) {
  const auto least = least_times(work, ceilings);
  if (!least) return std::nullopt;
  return least->memory_ms >= least->compute_ms;
}

std::optional<std::string> add_rates(reports::Object& figures, std::string_view phase, double median_ms,
                                     const Work& work, Ceilings& ceilings) {
  const std::string prefix = std::string(phase) + "_";
  const bool timed = std::isfinite(median_ms) && median_ms > 0;
  figures.set(prefix + "flops", work.flops);
  figures.set(prefix + "bytes", work.bytes);
  figures.set(prefix + "tflops", timed ? reports::Value(work.flops / (median_ms * kFlopsPerMs)) : reports::Value());
  figures.set(prefix + "gbps", timed ? reports::Value(work.bytes / (median_ms * kBytesPerMs)) : reports::Value());
  figures.set(prefix + "bound", nullptr);
  figures.set(prefix + "bound_share", nullptr);
  if (!timed) return std::nullopt;
  const auto least = least_times(work, ceilings);
  if (!least) return std::nullopt;
  const bool by_compute = least->compute_ms > least->memory_ms;
  const double share = std::max(least->compute_ms, least->memory_ms) / median_ms;
  figures.set(prefix + "bound", by_compute ? "compute" : "memory");
  figures.set(prefix + "bound_share", share);
  if (share <= 1) return std::nullopt;
  // Another mix than a copy's may rightly be faster than a copy, and so may what a GPU's L2 still holds of its results.
  const double unwritten = work.memory == MemoryRate::copy ? static_cast<double>(ceilings.unwritten_bytes()) : 0;
  if (!by_compute && work.bytes - unwritten <= ceilings.memory_gbps() * kBytesPerMs * median_ms) return std::nullopt;
  constexpr const char* kDoubtful = " count is doubtful; see noise and clock, and try --steps with more samples";
  if (by_compute) {
    return std::string(phase) + " ran at " + percent(share) + " of the measured " + std::string(name(work.path)) +
           " matmul rate: its time or its FLOP" + kDoubtful;
  }
  const std::size_t hot_bytes = ceilings.hot_cache_bytes();
  if (work.bytes <= static_cast<double>(hot_bytes)) return std::nullopt;  // they were in the cache
  const std::string memory =
      std::string(phase) + " moved its least bytes at " + percent(share) + " of the measured memory bandwidth: ";
  if (hot_bytes == 0) return memory + "its time or its byte" + kDoubtful;
  return memory + "part of its data was in the cache; --cache cold measures it from memory";
}

}  // namespace warpmeter::harness
