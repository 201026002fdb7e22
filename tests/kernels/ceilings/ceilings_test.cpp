#include <algorithm>
#include <chrono>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/ceilings/detail/cached_matmul.hpp"
#include "kernels/ceilings/detail/stream_isa.hpp"
#include "kernels/ceilings/detail/traffic_mix.hpp"
#include "kernels/ceilings/spin.hpp"
#include "kernels/runtime/check.hpp"
#include "kernels/runtime/cpu_isa.hpp"
#include "kernels/runtime/parallel.hpp"
#include "tests/kernels/ceilings/check_workloads.hpp"

namespace warpmeter::ceilings {
namespace {

class CpuCeilings : public testing::Test {
 protected:
  CachingAllocator allocator_{Device::cpu()};
  Context context_{{Device::cpu(), nullptr}, &allocator_};
};

/// Sets the thread count for a scope.
class Threads {
 public:
  explicit Threads(int threads) : previous_(num_threads()) { set_num_threads(threads); }
  ~Threads() { set_num_threads(previous_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int previous_;
};

TEST_F(CpuCeilings, MatmulIsRightForAnySizeAndThreadCount) {
  for (const int threads : {1, 2, 3, 4, 6}) {
    const Threads scope(threads);
    for (const std::int64_t n : {40, 64, 130}) {
      SCOPED_TRACE(testing::Message() << threads << " threads, n " << n);
      check_matmul(context_, ComputePath::fp32, n, 1e-5);
    }
  }
}

TEST_F(CpuCeilings, EveryPathIsFp32ButNativeBf16) {
  for (const ComputePath path : {ComputePath::fp32, ComputePath::tf32, ComputePath::tf32x3}) {
    EXPECT_EQ(measured_path(path, Device::cpu()), ComputePath::fp32);
  }
  const bool native = detail::choose_cached_matmul(ComputePath::half) != nullptr;
  EXPECT_EQ(measured_path(ComputePath::half, Device::cpu()), native ? ComputePath::half : ComputePath::fp32);
  EXPECT_EQ(measured_path(ComputePath::tf32x3, Device::cuda()), ComputePath::tf32);
  EXPECT_EQ(measured_path(ComputePath::half, Device::cuda()), ComputePath::half);
  EXPECT_THROW((void)make_matmul(context_, ComputePath::half, 64), CheckError);
}

TEST_F(CpuCeilings, CopyCopiesAndReadReadsEverything) {
  for (const int threads : {1, 2, 3, 7}) {
    const Threads scope(threads);
    for (const std::size_t bytes : {std::size_t{4096}, std::size_t{12288}, std::size_t{1} << 20}) {
      SCOPED_TRACE(testing::Message() << threads << " threads, " << bytes << " bytes");
      check_copy(context_, bytes);
      check_read(context_, bytes);
    }
  }
}

TEST_F(CpuCeilings, TrafficReadsAndWritesWhatItSays) {
  for (const int threads : {1, 2, 7}) {
    const Threads scope(threads);
    SCOPED_TRACE(testing::Message() << threads << " threads");
    check_traffic_of_many_mixes(context_, (std::size_t{2} << 20) + 200);
  }
  EXPECT_THROW((void)make_traffic(context_, 0, 0), CheckError);
}

TEST(TrafficMix, DealsOutEveryElementAndNoTileMoreThanItHas) {
  for (const std::size_t larger : {1, 31, 64, 1000, 4096, 100'003}) {
    for (const std::size_t smaller : {0, 1, 3, 31, 64, 999, 1000, 4095, 4096, 77'777, 100'002, 100'003}) {
      if (smaller > larger) continue;
      for (const std::size_t grain : {1, 32}) {
        for (const std::size_t tile : {32, 1024}) {
          const detail::TrafficMix mix(larger, smaller, tile, grain);
          ASSERT_EQ(mix.first(0), 0u);
          ASSERT_EQ(mix.first(mix.tiles()), smaller);
          for (std::size_t at = 0; at < mix.tiles(); ++at) {
            ASSERT_LE(mix.first(at), mix.first(at + 1));
            ASSERT_LE(mix.first(at + 1) - mix.first(at), std::min(tile, larger - at * tile));
            ASSERT_TRUE(mix.first(at) % grain == 0 || mix.first(at) == smaller);
          }
        }
      }
    }
  }
  // Of a terabyte in lines of 64 bytes still all.
  const std::size_t huge = std::size_t{1} << 34;
  for (const std::size_t smaller : {std::size_t{1}, huge / 3, huge - 1, huge}) {
    const detail::TrafficMix mix(huge, smaller, 1024, 1);
    EXPECT_EQ(mix.first(mix.tiles()), smaller);
    EXPECT_LE(smaller - mix.first(mix.tiles() - 1), 1024u);
  }
}

TEST_F(CpuCeilings, EveryInstructionSetCopiesAndReadsTheSame) {
  std::vector<std::uint32_t> source_words(4096 + 16), copied_words(4096 + 16);
  auto* const source =
      reinterpret_cast<std::uint32_t*>((reinterpret_cast<std::uintptr_t>(source_words.data()) + 63) / 64 * 64);
  auto* const copied =
      reinterpret_cast<std::uint32_t*>((reinterpret_cast<std::uintptr_t>(copied_words.data()) + 63) / 64 * 64);
  std::uint32_t expected = 0;
  for (std::uint32_t i = 0; i < 4096; ++i) expected += source[i] = i * 2654435761u;
  const auto check = [&](auto copy_stream, auto read_stream, auto traffic_stream) {
    for (const std::size_t streams : {std::size_t{1}, detail::kMostStreams}) {
      EXPECT_EQ(read_stream(reinterpret_cast<const char*>(source), 16384, streams), expected);
      EXPECT_EQ(read_stream(reinterpret_cast<const char*>(source), 0, streams), 0u);
      for (const bool non_temporal : {false, true}) {
        std::fill_n(copied, 4096, 0u);
        copy_stream(reinterpret_cast<char*>(copied), reinterpret_cast<const char*>(source), 16384, non_temporal,
                    streams);
        EXPECT_TRUE(std::equal(copied, copied + 4096, source));
        // Half of what is read is copied, by tiles of 32 lines: the first 16 of each.
        const detail::TrafficMix mix(256, 128, 32, 1);
        std::fill_n(copied, 4096, 0u);
        const std::uint32_t only_read = traffic_stream(
            {reinterpret_cast<char*>(copied), reinterpret_cast<const char*>(source), &mix, false, 0, mix.tiles()},
            non_temporal, streams);
        EXPECT_EQ(only_read + std::accumulate(copied, copied + 2048, 0u), expected);
        for (std::size_t tile = 0; tile < mix.tiles(); ++tile) {
          EXPECT_TRUE(std::equal(copied + tile * 256, copied + (tile + 1) * 256, source + tile * 512));
        }
        EXPECT_EQ(copied[2048], 0u);
      }
    }
  };
  check(detail::generic::copy_stream, detail::generic::read_stream, detail::generic::traffic_stream);
#if defined(__x86_64__)
  if (machine_cpu_isa() >= CpuIsa::avx2)
    check(detail::avx2::copy_stream, detail::avx2::read_stream, detail::avx2::traffic_stream);
  if (machine_cpu_isa() >= CpuIsa::avx512)
    check(detail::avx512::copy_stream, detail::avx512::read_stream, detail::avx512::traffic_stream);
#endif
}

TEST_F(CpuCeilings, MemoryIsTheHarnesssAndGivenBack) {
  {
    const auto copy = make_copy(context_, std::size_t{1} << 20);
    EXPECT_GE(allocator_.stats().harness, std::size_t{2} << 20);
    const auto traffic = make_traffic(context_, std::size_t{2} << 20, std::size_t{1} << 20);
    EXPECT_GE(allocator_.stats().harness, std::size_t{5} << 20);
    EXPECT_EQ(allocator_.stats().current.reserved, 0u);
  }
  EXPECT_EQ(allocator_.stats().harness, 0u);
}

TEST_F(CpuCeilings, SpinLastsAsLongAsAsked) {
  for (const std::int64_t ns : {0, 100'000, 5'000'000}) {
    const auto start = std::chrono::steady_clock::now();
    spin_for(ns, context_.stream);
    const auto elapsed = std::chrono::steady_clock::now() - start;
    EXPECT_GE(elapsed, std::chrono::nanoseconds(ns));
  }
}

}  // namespace
}  // namespace warpmeter::ceilings
