#include "kernels/runtime/allocator.hpp"

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/runtime/check.hpp"
#include "tests/kernels/runtime/fake_backend.hpp"

namespace warpmeter {
namespace {

using State = MemoryBlock::State;
constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMiB = 1024 * kKiB;

/// The allocator over a made-up device of 1 GiB.
class AllocatorTest : public ::testing::Test {
 protected:
  [[nodiscard]] static StreamView stream(std::uintptr_t number) {
    return {Device::cuda(0), reinterpret_cast<void*>(number)};
  }
  void* allocate(std::size_t bytes, std::uintptr_t number = 0) { return allocator_.allocate(bytes, stream(number)); }
  [[nodiscard]] MemoryAmounts now() const { return allocator_.stats().current; }
  [[nodiscard]] MemoryAmounts peak() const { return allocator_.stats().peak; }

  test::FakeBackend device_{1024 * kMiB};
  CachingAllocator allocator_{Device::cuda(0), device_};
};

char* at(void* pointer, std::size_t offset) {
  return static_cast<char*>(pointer) + offset;
}

TEST_F(AllocatorTest, RoundsTo512) {
  const std::size_t cases[][2] = {{1, 512},     {511, 512},       {512, 512},   {513, 1024},           {1024, 1024},
                                  {1025, 1536}, {kMiB - 1, kMiB}, {kMiB, kMiB}, {kMiB + 1, kMiB + 512}};
  for (const auto& [requested, rounded] : cases) {
    void* const block = allocate(requested);
    EXPECT_EQ(now().allocated, rounded) << requested;
    EXPECT_EQ(now().requested, requested);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % 512, 0U);
    allocator_.free(block);
    EXPECT_EQ(now().allocated, 0U);
    EXPECT_EQ(now().requested, 0U);
  }
}

TEST_F(AllocatorTest, SegmentSizesOfBothPools) {
  const struct {
    std::size_t bytes, segment;
    bool small;
  } cases[] = {
      {1, 2 * kMiB, true},
      {kMiB, 2 * kMiB, true},
      {kMiB + 1, 20 * kMiB, false},
      {10 * kMiB - 512, 20 * kMiB, false},
      {10 * kMiB - 1, 10 * kMiB, false},  // rounds to 10 MiB, a segment of its own
      {10 * kMiB, 10 * kMiB, false},
      {10 * kMiB + 1, 12 * kMiB, false},
      {33 * kMiB, 34 * kMiB, false},
  };
  for (const auto& c : cases) {
    void* const block = allocate(c.bytes);
    const auto segments = allocator_.segments();
    ASSERT_EQ(segments.size(), 1U);
    EXPECT_EQ(segments[0].size, c.segment) << c.bytes;
    EXPECT_EQ(segments[0].small_pool, c.small) << c.bytes;
    EXPECT_EQ(now().reserved, c.segment);
    EXPECT_EQ(device_.asked.back(), c.segment);
    allocator_.free(block);
    allocator_.empty_cache();
    EXPECT_EQ(now().reserved, 0U);
  }
}

TEST_F(AllocatorTest, ZeroBytesAreANullBlock) {
  void* const block = allocate(0);
  EXPECT_EQ(block, nullptr);
  allocator_.free(block);
  allocator_.record_stream(nullptr, stream(1));
  EXPECT_EQ(allocator_.stats().allocations, 0U);
  EXPECT_TRUE(allocator_.segments().empty());
}

TEST_F(AllocatorTest, PoolsDoNotMix) {
  void* const large = allocate(2 * kMiB);  // leaves 18 MiB free in its segment
  void* const small = allocate(kKiB);
  ASSERT_EQ(allocator_.segments().size(), 2U);
  EXPECT_EQ(now().reserved, 22 * kMiB);
  allocator_.free(large);
  allocator_.free(small);
}

TEST_F(AllocatorTest, SmallBlocksSplitDownTo512) {
  void* const first = allocate(kMiB);
  void* const second = allocate(kMiB - 512);
  EXPECT_EQ(second, at(first, kMiB));
  auto blocks = allocator_.segments().at(0).blocks;
  ASSERT_EQ(blocks.size(), 3U);
  EXPECT_EQ(blocks[2].size, 512U);
  EXPECT_EQ(blocks[2].state, State::inactive);
  void* const third = allocate(1);
  EXPECT_EQ(third, at(first, 2 * kMiB - 512));
  EXPECT_EQ(now().reserved, 2 * kMiB);
  EXPECT_EQ(now().allocated, 2 * kMiB);
  for (void* block : {first, second, third}) allocator_.free(block);
}

TEST_F(AllocatorTest, LargeBlocksSplitOnlyWhenMoreThanOneMiBWouldRemain) {
  void* const keeps = allocate(10 * kMiB + 512);  // 12 MiB segment: 2 MiB - 512 would remain
  EXPECT_EQ(now().allocated, 10 * kMiB + 512);
  EXPECT_EQ(allocator_.segments().at(0).blocks.size(), 2U);
  allocator_.free(keeps);
  allocator_.empty_cache();

  void* const whole = allocate(11 * kMiB);  // exactly 1 MiB would remain
  EXPECT_EQ(now().allocated, 12 * kMiB);
  EXPECT_EQ(now().requested, 11 * kMiB);
  EXPECT_EQ(allocator_.segments().at(0).blocks.size(), 1U);
  allocator_.free(whole);
  allocator_.empty_cache();

  void* const split = allocate(11 * kMiB - 512);
  EXPECT_EQ(now().allocated, 11 * kMiB - 512);
  EXPECT_EQ(allocator_.segments().at(0).blocks.at(1).size, kMiB + 512);
  allocator_.free(split);
}

TEST_F(AllocatorTest, FreedNeighboursMergeOnBothSides) {
  void* const a = allocate(4 * kKiB);
  void* const b = allocate(4 * kKiB);
  void* const c = allocate(4 * kKiB);
  allocator_.free(a);
  allocator_.free(c);  // merges with the segment's rest
  auto blocks = allocator_.segments().at(0).blocks;
  ASSERT_EQ(blocks.size(), 3U);
  EXPECT_EQ(blocks[0].size, 4 * kKiB);
  EXPECT_EQ(blocks[1].state, State::active_allocated);
  EXPECT_EQ(blocks[2].size, 2 * kMiB - 8 * kKiB);
  allocator_.free(b);
  blocks = allocator_.segments().at(0).blocks;
  ASSERT_EQ(blocks.size(), 1U);
  EXPECT_EQ(blocks[0].size, 2 * kMiB);
  EXPECT_EQ(blocks[0].state, State::inactive);
  EXPECT_EQ(allocate(kMiB), a) << "the merged block serves from its start";
}

TEST_F(AllocatorTest, BestFitThenLowestAddress) {
  std::vector<void*> blocks;
  // Holes of 8, 4, 6 and 4 KiB between live blocks, then 2 MiB minus that.
  for (const std::size_t size : {8, 4, 6, 4}) {
    blocks.push_back(allocate(size * kKiB));
    blocks.push_back(allocate(512));
  }
  for (const std::size_t hole : {0U, 2U, 4U, 6U}) allocator_.free(blocks[hole]);
  EXPECT_EQ(allocate(3 * kKiB), blocks[2]) << "the smaller of the 4 KiB holes' addresses";
  EXPECT_EQ(allocate(4 * kKiB), blocks[6]);
  EXPECT_EQ(allocate(5 * kKiB), blocks[4]);
  EXPECT_EQ(allocate(8 * kKiB), blocks[0]);
}

TEST_F(AllocatorTest, ReusesAFreedBlockOnItsOwnStreamOnly) {
  void* const a = allocate(4 * kMiB, 1);
  allocator_.free(a);
  void* const other = allocate(4 * kMiB, 2);
  EXPECT_NE(other, a);
  EXPECT_EQ(allocator_.segments().size(), 2U);
  EXPECT_EQ(allocate(4 * kMiB, 1), a);
  EXPECT_EQ(allocator_.stats().segment_allocations, 2U);
}

TEST_F(AllocatorTest, RecordedStreamsKeepABlockPending) {
  void* const a = allocate(20 * kMiB, 1);
  allocator_.record_stream(a, stream(1));  // its own: nothing to wait for
  allocator_.record_stream(a, stream(2));
  allocator_.record_stream(a, stream(2));
  allocator_.record_stream(a, stream(3));
  allocator_.free(a);
  EXPECT_EQ(now().allocated, 0U);
  EXPECT_EQ(device_.live_events, 2) << "one a stream";
  EXPECT_EQ(allocator_.segments().at(0).blocks.at(0).state, State::active_pending_free);
  void* const b = allocate(20 * kMiB, 1);
  EXPECT_NE(b, a) << "streams 2 and 3 may still use it";
  device_.complete_events();
  void* const c = allocate(20 * kMiB, 1);
  EXPECT_EQ(c, a);
  // The events serve again.
  allocator_.record_stream(b, stream(2));
  allocator_.free(b);
  EXPECT_EQ(device_.live_events, 2);
  allocator_.free(c);
}

TEST_F(AllocatorTest, PendingBlocksDoNotMergeUntilTheyAreDone) {
  void* const a = allocate(4 * kKiB, 1);
  void* const b = allocate(4 * kKiB, 1);
  allocator_.record_stream(a, stream(2));
  allocator_.free(a);
  allocator_.free(b);
  EXPECT_EQ(allocator_.segments().at(0).blocks.size(), 2U);
  device_.complete_events();
  allocator_.free(allocate(512, 1));  // looks at the events
  EXPECT_EQ(allocator_.segments().at(0).blocks.size(), 1U);
}

TEST_F(AllocatorTest, EmptyCacheWaitsForPendingBlocks) {
  void* const a = allocate(20 * kMiB, 1);
  allocator_.record_stream(a, stream(2));
  allocator_.free(a);
  allocator_.empty_cache();
  EXPECT_EQ(device_.synchronized_events, 1);
  EXPECT_EQ(now().reserved, 0U);
  EXPECT_EQ(device_.used, 0U);
}

TEST_F(AllocatorTest, ALostContextDoesNotKeepBlocks) {
  void* const a = allocate(20 * kMiB, 1);
  allocator_.record_stream(a, stream(2));
  device_.fail_events = true;
  allocator_.free(a);
  EXPECT_EQ(allocator_.segments().at(0).blocks.at(0).state, State::inactive);
}

TEST_F(AllocatorTest, EmptyCacheKeepsSegmentsInUse) {
  void* const a = allocate(4 * kMiB);
  void* const b = allocate(12 * kMiB);
  void* const c = allocate(100);
  allocator_.free(b);
  allocator_.empty_cache();
  EXPECT_EQ(now().reserved, 22 * kMiB);
  EXPECT_EQ(device_.used, 22 * kMiB);
  allocator_.free(a);
  allocator_.free(c);
  EXPECT_EQ(now().reserved, 22 * kMiB) << "cached";
  allocator_.empty_cache();
  EXPECT_EQ(now().reserved, 0U);
  EXPECT_EQ(device_.used, 0U);
}

TEST_F(AllocatorTest, PeaksAreEachMeasuresOwnMaximum) {
  void* const a = allocate(30 * kMiB + 1);  // 32 MiB segment
  allocator_.free(a);
  allocator_.empty_cache();
  void* const b = allocate(3 * kMiB);  // 20 MiB segment
  EXPECT_EQ(peak().allocated, 30 * kMiB + 512);
  EXPECT_EQ(peak().requested, 30 * kMiB + 1);
  EXPECT_EQ(peak().reserved, 32 * kMiB);
  allocator_.reset_peak();
  EXPECT_EQ(peak().allocated, 3 * kMiB);
  EXPECT_EQ(peak().requested, 3 * kMiB);
  EXPECT_EQ(peak().reserved, 20 * kMiB);
  void* const c = allocate(5 * kMiB);
  allocator_.free(b);
  EXPECT_EQ(peak().allocated, 8 * kMiB);
  EXPECT_EQ(now().allocated, 5 * kMiB);
  allocator_.free(c);
  EXPECT_EQ(peak().allocated, 8 * kMiB);
}

TEST_F(AllocatorTest, CountsAllocationsAndSegments) {
  for (int i = 0; i < 3; ++i) allocator_.free(allocate(kKiB));
  allocator_.free(allocate(50 * kMiB));
  const MemoryStats stats = allocator_.stats();
  EXPECT_EQ(stats.allocations, 4U);
  EXPECT_EQ(stats.segment_allocations, 2U);
  EXPECT_EQ(stats.retries, 0U);
  EXPECT_EQ(stats.ooms, 0U);
}

TEST_F(AllocatorTest, TheLimitBoundsReservedBytes) {
  allocator_.set_memory_limit(64 * kMiB);
  EXPECT_EQ(allocator_.memory_limit(), 64 * kMiB);
  EXPECT_EQ(allocator_.available_bytes(), 64 * kMiB);
  void* const a = allocate(40 * kMiB);
  EXPECT_EQ(allocator_.available_bytes(), 24 * kMiB);
  try {
    static_cast<void>(allocate(30 * kMiB));
    FAIL() << "70 of 64 MiB";
  } catch (const OutOfMemory& error) {
    EXPECT_EQ(error.requested(), 30 * kMiB);
    EXPECT_EQ(error.free(), 24 * kMiB);
    EXPECT_EQ(error.limit(), 64 * kMiB);
    EXPECT_STREQ(error.what(), "out of memory: 30.00 MiB requested, 24.00 MiB free of 64.00 MiB");
  }
  EXPECT_EQ(allocator_.stats().ooms, 1U);
  EXPECT_EQ(now().allocated, 40 * kMiB);
  void* const b = allocate(24 * kMiB);
  EXPECT_EQ(now().reserved, 64 * kMiB);
  EXPECT_EQ(allocator_.available_bytes(), 0U);
  EXPECT_THROW(static_cast<void>(allocate(1)), OutOfMemory);
  allocator_.set_memory_limit(0);
  EXPECT_EQ(allocator_.available_bytes(), (1024 - 64) * kMiB);
  allocator_.free(allocate(1));
  allocator_.free(a);
  allocator_.free(b);
}

TEST_F(AllocatorTest, ALimitBelowTheReservedBytesFreesTheCacheFirst) {
  void* const kept = allocate(20 * kMiB);
  allocator_.free(allocate(100 * kMiB));
  EXPECT_EQ(now().reserved, 120 * kMiB);
  allocator_.set_memory_limit(60 * kMiB);
  EXPECT_EQ(now().reserved, 20 * kMiB);
  allocator_.set_memory_limit(10 * kMiB);  // cannot be kept now: it binds what comes
  EXPECT_EQ(now().reserved, 20 * kMiB);
  EXPECT_EQ(allocator_.available_bytes(), 0U);
  allocator_.free(kept);
  EXPECT_EQ(allocate(12 * kMiB), kept) << "what is cached may still serve";
  allocator_.free(kept);
  allocator_.empty_cache();
  EXPECT_THROW(static_cast<void>(allocate(12 * kMiB)), OutOfMemory);
  allocator_.free(allocate(10 * kMiB));
}

TEST_F(AllocatorTest, ARefusedRequestFreesTheCacheAndTriesAgain) {
  allocator_.set_memory_limit(64 * kMiB);
  allocator_.free(allocate(40 * kMiB));
  void* const a = allocate(60 * kMiB);
  EXPECT_EQ(now().reserved, 60 * kMiB);
  EXPECT_EQ(allocator_.stats().retries, 1U);
  EXPECT_EQ(allocator_.stats().ooms, 0U);
  allocator_.free(a);
}

TEST_F(AllocatorTest, TheDevicesRefusalDoesTheSame) {
  allocator_.free(allocate(600 * kMiB));
  void* const a = allocate(700 * kMiB);
  EXPECT_EQ(allocator_.stats().retries, 1U);
  EXPECT_EQ(device_.asked, (std::vector<std::size_t>{600 * kMiB, 700 * kMiB, 700 * kMiB}));
  try {
    static_cast<void>(allocate(400 * kMiB));
    FAIL();
  } catch (const OutOfMemory& error) {
    EXPECT_EQ(error.requested(), 400 * kMiB);
    EXPECT_EQ(error.free(), 324 * kMiB);
    EXPECT_EQ(error.limit(), 1024 * kMiB);
  }
  allocator_.free(a);
}

TEST_F(AllocatorTest, APendingBlockIsWaitedForBeforeGivingUp) {
  allocator_.set_memory_limit(40 * kMiB);
  void* const a = allocate(30 * kMiB, 1);
  allocator_.record_stream(a, stream(2));
  allocator_.free(a);
  EXPECT_EQ(allocate(30 * kMiB, 1), a);
  EXPECT_EQ(device_.synchronized_events, 1);
  EXPECT_EQ(allocator_.stats().retries, 0U) << "the cache did it";
  allocator_.free(a);
}

TEST_F(AllocatorTest, AbsurdSizesAreRefusedWithoutOverflow) {
  for (const std::size_t bytes : {SIZE_MAX, SIZE_MAX - 511, SIZE_MAX / 2, std::size_t{1} << 50}) {
    try {
      static_cast<void>(allocate(bytes));
      FAIL() << bytes;
    } catch (const OutOfMemory& error) {
      EXPECT_EQ(error.requested(), bytes);
      EXPECT_EQ(error.free(), 1024 * kMiB);
    }
    EXPECT_THROW(static_cast<void>(allocator_.allocate_for_harness(bytes)), OutOfMemory);
  }
  EXPECT_EQ(allocator_.stats().harness, 0U);
}

TEST_F(AllocatorTest, ExternalAndHarnessBytesStandApart) {
  allocator_.add_external(1000);
  allocator_.add_external(500);
  allocator_.add_external(-700);
  EXPECT_EQ(allocator_.stats().external, 800U);
  EXPECT_THROW(allocator_.add_external(-801), CheckError);

  allocator_.set_memory_limit(20 * kMiB);
  void* const flush = allocator_.allocate_for_harness(100 * kMiB + 1);
  EXPECT_EQ(allocator_.stats().harness, 100 * kMiB + 1);
  EXPECT_EQ(now().reserved, 0U);
  EXPECT_EQ(peak().reserved, 0U);
  EXPECT_EQ(peak().allocated, 0U);
  allocator_.free(allocate(20 * kMiB));
  allocator_.free_for_harness(flush, 100 * kMiB + 1);
  EXPECT_EQ(allocator_.stats().harness, 0U);
  EXPECT_EQ(device_.used, 20 * kMiB);
  EXPECT_EQ(allocator_.allocate_for_harness(0), nullptr);
}

TEST_F(AllocatorTest, TheHarnessGetsTheCachesMemoryWhenTheDeviceIsFull) {
  allocator_.free(allocate(1000 * kMiB));
  void* const flush = allocator_.allocate_for_harness(100 * kMiB);
  EXPECT_EQ(now().reserved, 0U);
  allocator_.free_for_harness(flush, 100 * kMiB);
}

TEST_F(AllocatorTest, RefusesStreamsOfOtherDevices) {
  EXPECT_THROW(static_cast<void>(allocator_.allocate(1, StreamView{Device::cpu(), nullptr})), CheckError);
  EXPECT_THROW(allocator_.record_stream(&device_, stream(1)), CheckError) << "not a block";
}

TEST_F(AllocatorTest, GivesEverythingBackAtTheEnd) {
  test::FakeBackend device(1024 * kMiB);
  {
    CachingAllocator allocator(Device::cuda(0), device);
    void* const out = allocator.allocate(3 * kMiB, stream(1));
    static_cast<void>(allocator.allocate(100, stream(1)));
    allocator.record_stream(out, stream(2));
    allocator.free(out);
    EXPECT_EQ(device.live_events, 1);
  }
  EXPECT_EQ(device.used, 0U);
  EXPECT_TRUE(device.segments.empty());
  EXPECT_EQ(device.live_events, 0);
}

using AllocatorDeathTest = AllocatorTest;
TEST_F(AllocatorDeathTest, FreeingTwiceOrAnotherPointerEnds) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  void* const a = allocate(100);
  EXPECT_DEATH(
      {
        allocator_.free(a);
        allocator_.free(a);
      },
      "not an allocated block");
  EXPECT_DEATH(allocator_.free(at(a, 64)), "not an allocated block");
  allocator_.free(a);
}

// The real thing, over host memory.

TEST(HostAllocator, BlocksAreAlignedWritableAndReusedWarm) {
  CachingAllocator allocator(Device::cpu());
  const StreamView stream{Device::cpu(), nullptr};
  EXPECT_EQ(allocator.device(), Device::cpu());
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{513}, 5 * kMiB, 33 * kMiB + 7}) {
    void* const block = allocator.allocate(bytes, stream);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % 512, 0U);
    std::memset(block, 0xAB, bytes);
    allocator.free(block);
    void* const again = allocator.allocate(bytes, stream);
    EXPECT_EQ(again, block);
    EXPECT_EQ(*static_cast<unsigned char*>(again), 0xAB) << "the same pages";
    allocator.free(again);
  }
  for (const MemorySegment& segment : allocator.segments()) EXPECT_EQ(segment.address % (2 * kMiB), 0U);
  allocator.empty_cache();
  EXPECT_EQ(allocator.stats().current.reserved, 0U);
}

TEST(HostAllocator, MoreThanTheMachineHasIsOutOfMemory) {
  CachingAllocator allocator(Device::cpu());
  const StreamView stream{Device::cpu(), nullptr};
  const std::size_t machine = properties(Device::cpu()).memory_bytes;
  try {
    static_cast<void>(allocator.allocate(2 * machine, stream));
    FAIL();
  } catch (const OutOfMemory& error) {
    EXPECT_EQ(error.requested(), 2 * machine);
    EXPECT_EQ(error.limit(), machine);
    EXPECT_LE(error.free(), machine);
    EXPECT_GT(error.free(), 0U);
  }
  // Asking in pieces, none of them touched, ends the same way instead of in the kernel's hands.
  std::vector<void*> blocks;
  const std::size_t piece = machine / 8;
  EXPECT_THROW(
      {
        for (int i = 0; i < 9; ++i) blocks.push_back(allocator.allocate(piece, stream));
      },
      OutOfMemory);
  EXPECT_LE(blocks.size(), 8U);
  for (void* block : blocks) allocator.free(block);
  EXPECT_EQ(allocator.stats().current.allocated, 0U);
}

TEST(HostAllocator, StreamsKeepTheirBlocks) {
  CachingAllocator allocator(Device::cpu());
  const Stream a(Device::cpu());
  const Stream b(Device::cpu());
  void* const block = allocator.allocate(100, a);
  allocator.record_stream(block, b);
  allocator.free(block);
  EXPECT_EQ(allocator.segments().at(0).blocks.at(0).state, State::active_pending_free);
  void* const other = allocator.allocate(100, b);
  EXPECT_NE(other, block);
  EXPECT_EQ(allocator.allocate(100, a), block);
  allocator.free(block);
  allocator.free(other);
}

#if defined(__SANITIZE_ADDRESS__)
TEST(HostAllocatorDeathTest, AddressSanitizerSeesUseAfterFreeAndOverruns) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  CachingAllocator allocator(Device::cpu());
  const StreamView stream{Device::cpu(), nullptr};
  auto* const block = static_cast<volatile char*>(allocator.allocate(100, stream));
  block[99] = 1;
  EXPECT_DEATH(block[104] = 1, "use-after-poison");
  allocator.free(const_cast<char*>(block));
  EXPECT_DEATH(block[0] = 1, "use-after-poison");
}
#endif

}  // namespace
}  // namespace warpmeter
