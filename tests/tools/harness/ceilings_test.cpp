#include "tools/harness/ceilings.hpp"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "kernels/ceilings/matmul.hpp"
#include "kernels/runtime/allocator.hpp"
#include "kernels/runtime/stream.hpp"

namespace warpmeter::harness {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct FixedSource final : public CeilingSource {
  double fp32 = 50, tf32 = 300, half = 800, copy = 4000, read = 4500;
  int* asked = nullptr;

  double matmul_tflops(ComputePath path) override {
    count();
    EXPECT_NE(path, ComputePath::tf32x3);
    return path == ComputePath::fp32 ? fp32 : path == ComputePath::tf32 ? tf32 : half;
  }
  double copy_gbps() override {
    count();
    return copy;
  }
  double read_gbps() override {
    count();
    return read;
  }
  void count() {
    if (asked != nullptr) ++*asked;
  }
};

Ceilings fixed(FixedSource source = {}, std::size_t hot_cache_bytes = 0, std::size_t unwritten_bytes = 0) {
  return Ceilings(std::make_unique<FixedSource>(source), hot_cache_bytes, unwritten_bytes);
}

/// Memory that another speed is measured of each time.
struct DriftingSource final : public CeilingSource {
  double copy = 40, read = 60, factor = 1;
  double matmul_tflops(ComputePath /*path*/) override {
    ADD_FAILURE() << "is no memory";
    return 0;
  }
  double copy_gbps() override { return copy *= factor; }
  double read_gbps() override { return read *= factor; }
};

TEST(Ceilings, MemoryThatHasChangedIsSaid) {
  const auto drift = [](double factor, bool copies) {
    auto owned = std::make_unique<DriftingSource>();
    DriftingSource& source = *owned;
    Ceilings ceilings(std::move(owned));
    EXPECT_FALSE(ceilings.memory_drift());  // nothing was measured
    EXPECT_EQ(source.read, 60);             // nor is it
    (void)(copies ? ceilings.copy_gbps() : ceilings.read_gbps());
    source.factor = factor;
    const auto text = ceilings.memory_drift();
    EXPECT_EQ(copies ? ceilings.copy_gbps() : ceilings.read_gbps(), copies ? 40 : 60);  // rows were held against it
    return text.value_or("");
  };
  EXPECT_EQ(drift(1.1, true), "");
  EXPECT_EQ(drift(1 / 1.1, false), "");
  EXPECT_EQ(drift(kNaN, false), "");
  EXPECT_NE(drift(0.5, true).find("memory is copied at 20 GB/s now, and was at 40 "), std::string::npos);
  EXPECT_NE(drift(1.25, false).find("memory is read at 75 GB/s now, and was at 60 "), std::string::npos);
}

TEST(Ceilings, EachIsMeasuredOnceAndListed) {
  int asked = 0;
  FixedSource source;
  source.asked = &asked;
  Ceilings ceilings = fixed(source);
  EXPECT_TRUE(ceilings.measured().empty());
  EXPECT_EQ(asked, 0);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(ceilings.matmul_tflops(ComputePath::fp32), 50);
    EXPECT_EQ(ceilings.matmul_tflops(ComputePath::tf32), 300);
    EXPECT_EQ(ceilings.matmul_tflops(ComputePath::tf32x3), 100);  // no measurement of its own
    EXPECT_EQ(ceilings.matmul_tflops(ComputePath::half), 800);
    EXPECT_EQ(ceilings.copy_gbps(), 4000);
    EXPECT_EQ(ceilings.read_gbps(), 4500);
    EXPECT_EQ(ceilings.memory_gbps(), 4500);
  }
  EXPECT_EQ(asked, 5);
  std::vector<std::string> names;
  const reports::Object measured = ceilings.measured();
  for (const auto& field : measured.fields()) names.push_back(field.first);
  EXPECT_EQ(names, (std::vector<std::string>{"matmul_fp32_tflops", "matmul_tf32_tflops", "matmul_16bit_tflops",
                                             "copy_gbps", "read_gbps"}));
}

TEST(Ceilings, WhatCouldNotBeMeasuredIsTriedAgain) {
  int asked = 0;
  FixedSource source;
  source.asked = &asked;
  source.read = kNaN;
  Ceilings ceilings = fixed(source);
  EXPECT_TRUE(std::isnan(ceilings.read_gbps()));
  EXPECT_TRUE(std::isnan(ceilings.read_gbps()));
  EXPECT_EQ(asked, 2);
  EXPECT_TRUE(std::isnan(ceilings.memory_gbps()));
  EXPECT_FALSE(ceilings.measured().has("read_gbps"));
}

double number(const reports::Object& figures, std::string_view field) {
  const reports::Value* value = figures.find(field);
  if (value == nullptr) return -1;
  return value->as_number().value_or(-2);
}

TEST(AddRates, ComputeBound) {
  Ceilings ceilings = fixed();
  reports::Object figures;
  // 1e12 FLOP need 20 ms at 50 TFLOP/s; 9e9 bytes need 2 ms at 4500 GB/s; measured 25 ms.
  EXPECT_EQ(add_rates(figures, "fwd", 25, {1e12, 9e9, ComputePath::fp32}, ceilings), std::nullopt);
  std::vector<std::string> names;
  for (const auto& field : figures.fields()) names.push_back(field.first);
  EXPECT_EQ(names, (std::vector<std::string>{"fwd_flops", "fwd_bytes", "fwd_tflops", "fwd_gbps", "fwd_bound",
                                             "fwd_bound_share"}));
  EXPECT_EQ(number(figures, "fwd_flops"), 1e12);
  EXPECT_EQ(number(figures, "fwd_bytes"), 9e9);
  EXPECT_DOUBLE_EQ(number(figures, "fwd_tflops"), 40);
  EXPECT_DOUBLE_EQ(number(figures, "fwd_gbps"), 360);
  EXPECT_EQ(*figures.find("fwd_bound")->as_string(), "compute");
  EXPECT_DOUBLE_EQ(number(figures, "fwd_bound_share"), 0.8);
}

TEST(AddRates, MemoryBound) {
  Ceilings ceilings = fixed();
  reports::Object figures;
  // 9e9 bytes need 2 ms; measured 2.5 ms.
  EXPECT_EQ(add_rates(figures, "bwd", 2.5, {1e10, 9e9, ComputePath::half}, ceilings), std::nullopt);
  EXPECT_EQ(*figures.find("bwd_bound")->as_string(), "memory");
  EXPECT_DOUBLE_EQ(number(figures, "bwd_bound_share"), 0.8);
  EXPECT_DOUBLE_EQ(number(figures, "bwd_gbps"), 3600);
}

TEST(AddRates, WorkMayNameTheMemoryRateThatBoundsIt) {
  const auto share_of = [](MemoryRate rate, double median_ms, bool warns) {
    Ceilings ceilings = fixed();
    reports::Object figures;
    Work work{0, 4e9};
    work.memory = rate;
    EXPECT_EQ(add_rates(figures, "fwd", median_ms, work, ceilings).has_value(), warns);
    return figures.find("fwd_bound_share")->as_number().value_or(kNaN);
  };
  EXPECT_NEAR(share_of(MemoryRate::copy, 2.0, false), 4.0 / (4.0 * 2.0), 1e-12);
  EXPECT_NEAR(share_of(MemoryRate::read, 2.0, false), 4.0 / (4.5 * 2.0), 1e-12);
  EXPECT_NEAR(share_of(MemoryRate::best, 2.0, false), 4.0 / (4.5 * 2.0), 1e-12);
  EXPECT_NEAR(share_of(MemoryRate::copy, 0.95, false), 4.0 / (4.0 * 0.95), 1e-12);  // no more than a read may reach
  EXPECT_NEAR(share_of(MemoryRate::copy, 0.8, true), 4.0 / (4.0 * 0.8), 1e-12);
}

TEST(AddRates, ThreeTf32ProductsAreHeldAgainstAThird) {
  Ceilings ceilings = fixed();
  reports::Object figures;
  EXPECT_EQ(add_rates(figures, "fwd", 20, {1e12, 1, ComputePath::tf32x3}, ceilings), std::nullopt);
  EXPECT_DOUBLE_EQ(number(figures, "fwd_bound_share"), 0.5);  // 10 ms at 100 TFLOP/s
}

TEST(AddRates, MoreThanTheCeilingIsAWarning) {
  Ceilings ceilings = fixed();
  reports::Object figures;
  const auto compute = add_rates(figures, "fwd", 10, {1e12, 1, ComputePath::fp32}, ceilings);
  ASSERT_TRUE(compute.has_value());
  EXPECT_NE(compute->find("fwd ran at 200.0%"), std::string::npos) << *compute;
  EXPECT_DOUBLE_EQ(number(figures, "fwd_bound_share"), 2);
  const auto memory = add_rates(figures, "fwd", 1, {1, 9e9, ComputePath::fp32}, ceilings);
  ASSERT_TRUE(memory.has_value());
  EXPECT_NE(memory->find("200.0%"), std::string::npos) << *memory;
  EXPECT_NE(memory->find("its byte count is doubtful"), std::string::npos) << *memory;
  EXPECT_EQ(memory->find("--cache cold"), std::string::npos) << *memory;                         // it is already
  EXPECT_EQ(add_rates(figures, "fwd", 2, {1, 9e9, ComputePath::fp32}, ceilings), std::nullopt);  // exactly 100%
}

TEST(AddRates, DataInAHotCacheMayBeatTheMemory) {
  constexpr std::size_t kCache = std::size_t{32} << 20;
  Ceilings ceilings = fixed({}, kCache);
  reports::Object figures;
  const auto share_of = [&](double bytes) { return bytes / 4500e6 / 1e-3; };
  EXPECT_EQ(add_rates(figures, "fwd", 1e-3, {1, 0x1p25, ComputePath::fp32}, ceilings), std::nullopt);  // just fits
  EXPECT_EQ(*figures.find("fwd_bound")->as_string(), "memory");
  EXPECT_DOUBLE_EQ(number(figures, "fwd_bound_share"), share_of(0x1p25));  // 7.5: the share is told all the same
  const auto more = add_rates(figures, "fwd", 1e-3, {1, 0x1p25 + 1, ComputePath::fp32}, ceilings);
  ASSERT_TRUE(more.has_value());
  EXPECT_NE(more->find("--cache cold"), std::string::npos) << *more;
  EXPECT_DOUBLE_EQ(number(figures, "fwd_bound_share"), share_of(0x1p25 + 1));
  // Compute has no such excuse.
  EXPECT_TRUE(add_rates(figures, "fwd", 10, {1e12, 1, ComputePath::fp32}, ceilings).has_value());
}

TEST(AddRates, WhatTheCacheStillHoldsOfResultsMayBeatTheMemory) {
  constexpr std::size_t kCache = std::size_t{50} << 20;
  Ceilings ceilings = fixed({}, 0, kCache);
  reports::Object figures;
  const auto warns = [&](double bytes, MemoryRate memory) {
    return add_rates(figures, "fwd", 0.1, {1, bytes, ComputePath::fp32, memory}, ceilings).has_value();
  };
  constexpr double kMoved = 4500e6 * 0.1;  // at the read ceiling, in the time that it took
  EXPECT_FALSE(warns(kMoved + kCache, MemoryRate::copy));
  EXPECT_DOUBLE_EQ(number(figures, "fwd_bound_share"), (kMoved + kCache) / (4000e6 * 0.1));  // told all the same
  EXPECT_TRUE(warns(kMoved + kCache + 4096, MemoryRate::copy));
  // What reads leaves nothing behind, and of any mix nobody knows how much it writes.
  for (const MemoryRate memory : {MemoryRate::read, MemoryRate::best}) {
    EXPECT_FALSE(warns(kMoved, memory));
    EXPECT_TRUE(warns(kMoved + 4096, memory));
  }
}

TEST(Ceilings, HotCacheIsTheLastLevelAndColdIsNone) {
  CachingAllocator allocator(Device::cpu());
  const Stream stream(Device::cpu());
  Settings settings;
  settings.cache = CacheState::hot;
  EXPECT_EQ(Ceilings({stream, &allocator}, settings).hot_cache_bytes(),
            properties(Device::cpu()).last_level_cache_bytes);
  settings.cache = CacheState::cold;
  EXPECT_EQ(Ceilings({stream, &allocator}, settings).hot_cache_bytes(), 0u);
  EXPECT_EQ(Ceilings({stream, &allocator}, settings).unwritten_bytes(), 0u);  // of GPUs alone
  EXPECT_EQ(fixed().hot_cache_bytes(), 0u);
}

TEST(AddRates, WithoutATimeThereAreNoRatesAndNothingIsMeasured) {
  for (const double ms : {0.0, -1.0, kNaN, std::numeric_limits<double>::infinity()}) {
    int asked = 0;
    FixedSource source;
    source.asked = &asked;
    Ceilings ceilings = fixed(source);
    reports::Object figures;
    EXPECT_EQ(add_rates(figures, "fwd", ms, {1e12, 9e9, ComputePath::fp32}, ceilings), std::nullopt);
    EXPECT_EQ(number(figures, "fwd_flops"), 1e12);
    EXPECT_EQ(number(figures, "fwd_bytes"), 9e9);
    for (const char* field : {"fwd_tflops", "fwd_gbps", "fwd_bound", "fwd_bound_share"}) {
      ASSERT_TRUE(figures.has(field)) << field;
      EXPECT_TRUE(figures.find(field)->is_null()) << field;
    }
    EXPECT_EQ(asked, 0);
  }
}

TEST(AddRates, WithoutACeilingThereIsNoShare) {
  FixedSource source;
  source.copy = kNaN;
  Ceilings ceilings = fixed(source);
  reports::Object figures;
  EXPECT_EQ(add_rates(figures, "fwd", 25, {1e12, 9e9, ComputePath::fp32}, ceilings), std::nullopt);
  EXPECT_DOUBLE_EQ(number(figures, "fwd_tflops"), 40);
  EXPECT_TRUE(figures.find("fwd_bound")->is_null());
  EXPECT_TRUE(figures.find("fwd_bound_share")->is_null());
}

TEST(AddRates, WorkWithoutFlopsMeasuresNoMatmul) {
  Ceilings ceilings = fixed();
  reports::Object figures;
  EXPECT_EQ(add_rates(figures, "copy", 4, {0, 9e9, ComputePath::fp32}, ceilings), std::nullopt);
  EXPECT_DOUBLE_EQ(number(figures, "copy_bound_share"), 0.5);
  EXPECT_FALSE(ceilings.measured().has("matmul_fp32_tflops"));
  reports::Object nothing;
  EXPECT_EQ(add_rates(nothing, "fwd", 4, {}, ceilings), std::nullopt);
  EXPECT_TRUE(nothing.find("fwd_bound")->is_null());
}

TEST(Ceilings, WhatBoundsWorkIsKnownBeforeItsTime) {
  Ceilings ceilings = fixed();  // 50 TFLOP/s, copy 4000 GB/s, read 4500
  EXPECT_EQ(bound_by_memory({50e9, 3.9e9}, ceilings), false);
  EXPECT_EQ(bound_by_memory({50e9, 4.6e9}, ceilings), true);
  Work copy{50e9, 4.2e9};
  EXPECT_EQ(bound_by_memory(copy, ceilings), false);  // the larger rate, unless the work says which
  copy.memory = MemoryRate::copy;
  EXPECT_EQ(bound_by_memory(copy, ceilings), true);
  EXPECT_EQ(bound_by_memory({}, ceilings), std::nullopt);
  FixedSource source;
  source.read = kNaN;
  Ceilings unknown = fixed(source);
  EXPECT_EQ(bound_by_memory({50e9, 4.6e9}, unknown), std::nullopt);
}

TEST(Ceilings, OfThisCpuAreMeasuredQuicklyAndLeaveNoMemory) {
  CachingAllocator allocator(Device::cpu());
  allocator.set_memory_limit(std::size_t{1} << 20);  // harness memory is not under it
  const Stream stream(Device::cpu());
  Settings settings;
  Ceilings ceilings({stream, &allocator}, settings);
  const auto start = std::chrono::steady_clock::now();
  const double fp32 = ceilings.matmul_tflops(ComputePath::fp32);
  const double copy = ceilings.copy_gbps();
  const double read = ceilings.read_gbps();
  EXPECT_GT(fp32, 1e-4);
  EXPECT_LT(fp32, 1e3);
  EXPECT_GT(copy, 0.1);
  EXPECT_LT(copy, 1e5);
  EXPECT_GT(read, 0.1);
  EXPECT_LT(read, 1e5);
  EXPECT_EQ(ceilings.matmul_tflops(ComputePath::tf32x3), fp32);
  EXPECT_EQ(ceilings.measured().fields().size(), 3u);  // only what was asked for
  const bool native = ceilings::measured_path(ComputePath::half, Device::cpu()) == ComputePath::half;
  const double half = ceilings.matmul_tflops(ComputePath::half);
  if (native) {
    EXPECT_GT(half, 1e-4);
    EXPECT_LT(half, 1e4);
  } else {
    EXPECT_EQ(half, fp32);
  }
  EXPECT_EQ(ceilings.measured().fields().size(), native ? 4u : 3u);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const MemoryStats stats = allocator.stats();
  EXPECT_EQ(stats.harness, 0u);
  EXPECT_EQ(stats.peak.reserved, 0u);
  std::printf("ceilings: fp32 %.4f, 16-bit %.4f TFLOP/s, copy %.1f GB/s, read %.1f GB/s, in %.1f s\n", fp32, half, copy,
              read, seconds.count());
}

TEST(Ceilings, NoMatmulIsAboveTheCeilingOfItsPath) {
  CachingAllocator allocator(Device::cpu());
  const Stream stream(Device::cpu());
  const Context context{stream, &allocator};
  Settings settings;
  settings.warmup = 0;
  settings.max_noise = 0;
  settings.max_time_s = 0.1;
  const auto share_of = [&](ceilings::Workload& work, ComputePath path, Ceilings& ceilings) {
    Sampler sampler(context, settings);
    const double median_ms = sampler.measure({[&] { work.enqueue(0); }, {}, 1}).statistics().median_ms;
    reports::Object figures;
    const auto warning = add_rates(figures, "fwd", median_ms, {work.amount(), 0, path}, ceilings);
    EXPECT_EQ(warning.has_value(), number(figures, "fwd_bound_share") > 1);
    return number(figures, "fwd_bound_share");
  };
  for (const ComputePath path : {ComputePath::fp32, ComputePath::half}) {
    const ComputePath measured = ceilings::measured_path(path, Device::cpu());
    const auto cached = ceilings::make_cached_matmul(context, measured);
    const auto large = measured == ComputePath::fp32 ? ceilings::make_matmul(context, measured) : nullptr;
    // Other programs may slow down the ceiling and not what follows it, or the other way round, though not every time;
    // a ceiling that is measured worse than the work it bounds is too low every time.
    bool bounds = false;
    double share = 0, large_share = 0;
    for (int attempt = 0; attempt < 20 && !bounds; ++attempt) {
      Ceilings ceilings(context, settings);
      share = share_of(*cached, path, ceilings);
      if (large) large_share = share_of(*large, path, ceilings);
      bounds = share <= 1.0 && large_share <= 1.0 && share > 0.1;
    }
    EXPECT_TRUE(bounds) << name(path) << ": " << share << ", " << large_share;
  }
}

}  // namespace
}  // namespace warpmeter::harness
