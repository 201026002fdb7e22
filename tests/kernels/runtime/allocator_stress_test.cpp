// The allocator against a plain model of its rules, and from several threads at once.

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/runtime/allocator.hpp"
#include "tests/kernels/runtime/fake_backend.hpp"

namespace warpmeter {
namespace {

using State = MemoryBlock::State;
constexpr std::size_t kMiB = std::size_t{1} << 20;

struct Live {
  std::size_t size, requested;
  void* stream;
};

struct Prediction {
  std::uintptr_t address = 0;  ///< 0: a new segment
  std::size_t size = 0;        ///< of the block that is handed out
};

/// What the rules say that a request gets, from nothing but the list of segments.
Prediction predict(const std::vector<MemorySegment>& segments, std::size_t bytes, void* stream) {
  const std::size_t size = (bytes + 511) / 512 * 512;
  const bool small = size <= kMiB;
  const MemoryBlock* best = nullptr;
  for (const MemorySegment& segment : segments) {
    if (segment.small_pool != small || segment.stream != stream) continue;
    for (const MemoryBlock& block : segment.blocks) {
      if (block.state != State::inactive || block.size < size) continue;
      if (best == nullptr || block.size < best->size) best = &block;  // addresses only grow in this walk
    }
  }
  Prediction prediction;
  std::size_t found = small ? 2 * kMiB : size < 10 * kMiB ? 20 * kMiB : (size + 2 * kMiB - 1) / (2 * kMiB) * 2 * kMiB;
  if (best != nullptr) {
    prediction.address = best->address;
    found = best->size;
  }
  const std::size_t rest = found - size;
  prediction.size = (small ? rest >= 512 : rest > kMiB) ? size : found;
  return prediction;
}

bool any_pending(const std::vector<MemorySegment>& segments) {
  for (const MemorySegment& segment : segments) {
    for (const MemoryBlock& block : segment.blocks) {
      if (block.state == State::active_pending_free) return true;
    }
  }
  return false;
}

/// Segments are disjoint, blocks tile them, no two free neighbours, and exactly the live blocks are active.
void expect_consistent(const std::vector<MemorySegment>& segments, const std::map<std::uintptr_t, Live>& live,
                       const MemoryStats& stats, const std::map<std::uintptr_t, std::size_t>& device) {
  std::size_t reserved = 0, allocated = 0, requested = 0, active = 0;
  ASSERT_EQ(segments.size(), device.size());
  for (const MemorySegment& segment : segments) {
    ASSERT_EQ(device.at(segment.address), segment.size);
    reserved += segment.size;
    std::uintptr_t next = segment.address;
    bool previous_free = false;
    for (const MemoryBlock& block : segment.blocks) {
      ASSERT_EQ(block.address, next);
      ASSERT_EQ(block.size % 512, 0U);
      ASSERT_GT(block.size, 0U);
      next += block.size;
      const bool is_free = block.state == State::inactive;
      ASSERT_FALSE(is_free && previous_free) << "free neighbours not merged";
      previous_free = is_free;
      if (block.state != State::active_allocated) continue;
      ++active;
      const auto found = live.find(block.address);
      ASSERT_NE(found, live.end());
      ASSERT_EQ(found->second.size, block.size);
      ASSERT_EQ(found->second.requested, block.requested);
      ASSERT_EQ(found->second.stream, segment.stream);
    }
    ASSERT_EQ(next, segment.address + segment.size) << "blocks tile the segment";
  }
  for (const auto& [address, block] : live) {
    allocated += block.size;
    requested += block.requested;
  }
  ASSERT_EQ(active, live.size());
  ASSERT_EQ(stats.current.reserved, reserved);
  ASSERT_EQ(stats.current.allocated, allocated);
  ASSERT_EQ(stats.current.requested, requested);
}

std::size_t random_bytes(std::mt19937_64& random) {
  const auto below = [&](std::size_t bound) { return static_cast<std::size_t>(random() % bound) + 1; };
  switch (random() % 10) {
    case 0:
      return below(40 * kMiB);
    case 1:
      return below(10 * kMiB);
    case 2:
      return below(3 * kMiB);
    case 3:
      return below(kMiB);
    default:
      return below(64 * 1024);
  }
}

TEST(AllocatorStress, AHundredThousandOperationsFollowTheRules) {
  test::FakeBackend device(600 * kMiB);
  CachingAllocator allocator(Device::cuda(0), device);
  std::mt19937_64 random(20240607);
  std::map<std::uintptr_t, Live> live;
  std::vector<std::uintptr_t> order;
  MemoryAmounts peak;
  std::uint64_t allocations = 0, ooms = 0, new_segments = 0, predictions = 0;
  const auto stream = [](std::uint64_t n) { return StreamView{Device::cuda(0), reinterpret_cast<void*>(n % 3)}; };

  for (int operation = 0; operation < 100000; ++operation) {
    const bool grow = live.size() < 20 || (live.size() < 400 && random() % 100 < 51);
    if (grow) {
      const StreamView on = stream(random());
      const std::size_t bytes = random_bytes(random);
      // Predicting reads every block: every 7th request is enough, and all while the state is small. A request looks
      // at the events first, so nothing is predicted while blocks are pending.
      bool predicted = operation % 7 == 0 || live.size() < 30;
      const std::size_t free_before = device.free_memory(0);
      Prediction expected;
      if (predicted) {
        const auto segments = allocator.segments();
        predicted = !any_pending(segments);
        if (predicted) expected = predict(segments, bytes, on.handle);
      }
      const std::uint64_t segments_before = allocator.stats().segment_allocations;
      void* pointer = nullptr;
      try {
        pointer = allocator.allocate(bytes, on);
      } catch (const OutOfMemory& error) {
        ++ooms;
        ASSERT_EQ(error.requested(), bytes);
        ASSERT_EQ(error.limit(), 600 * kMiB);
        ASSERT_LT(error.free(), std::max(bytes, 20 * kMiB));
        continue;
      }
      ++allocations;
      const auto address = reinterpret_cast<std::uintptr_t>(pointer);
      const bool fresh = allocator.stats().segment_allocations != segments_before;
      if (fresh) ++new_segments;
      const std::size_t before = allocator.stats().current.allocated;
      std::size_t known = 0;
      for (const auto& [other, block] : live) known += block.size;
      const std::size_t size = before - known;
      if (predicted && (expected.address != 0 || free_before >= 40 * kMiB)) {
        ASSERT_EQ(fresh, expected.address == 0);
        if (!fresh) {
          ASSERT_EQ(address, expected.address);
        }
        ASSERT_EQ(size, expected.size);
        ++predictions;
      }
      ASSERT_EQ(address % 512, 0U);
      const auto after = live.lower_bound(address);
      ASSERT_TRUE(after == live.end() || address + size <= after->first) << "overlaps the next live block";
      ASSERT_TRUE(after == live.begin() || std::prev(after)->first + std::prev(after)->second.size <= address);
      live.emplace(address, Live{size, bytes, on.handle});
      order.push_back(address);
    } else {
      const std::size_t which = random() % order.size();
      const std::uintptr_t address = order[which];
      order[which] = order.back();
      order.pop_back();
      if (random() % 32 == 0) allocator.record_stream(reinterpret_cast<void*>(address), stream(random()));
      allocator.free(reinterpret_cast<void*>(address));
      live.erase(address);
      if (random() % 4 == 0) device.complete_events();
    }
    if (random() % 5000 == 0) allocator.empty_cache();
    const MemoryStats stats = allocator.stats();
    peak.allocated = std::max(peak.allocated, stats.current.allocated);
    peak.requested = std::max(peak.requested, stats.current.requested);
    peak.reserved = std::max(peak.reserved, stats.current.reserved);
    ASSERT_EQ(stats.peak.allocated, peak.allocated);
    ASSERT_EQ(stats.peak.requested, peak.requested);
    ASSERT_GE(stats.peak.reserved, peak.reserved);
    if (operation % 500 == 0) {
      expect_consistent(allocator.segments(), live, stats, device.segments);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }

  const MemoryStats stats = allocator.stats();
  EXPECT_EQ(stats.allocations, allocations);
  EXPECT_EQ(stats.ooms, ooms);
  EXPECT_GT(ooms, 0U) << "the device was never full: the test is weaker than it should be";
  EXPECT_GT(stats.retries, 0U);
  EXPECT_GT(new_segments, 100U);
  EXPECT_GT(predictions, 2000U);
  for (const std::uintptr_t address : order) allocator.free(reinterpret_cast<void*>(address));
  allocator.empty_cache();
  EXPECT_EQ(allocator.stats().current.reserved, 0U);
  EXPECT_EQ(allocator.stats().current.allocated, 0U);
  EXPECT_EQ(allocator.stats().current.requested, 0U);
  EXPECT_TRUE(allocator.segments().empty());
  EXPECT_EQ(device.used, 0U);
}

// The history alone tells what is live: replaying it gives the allocator's own figures at every step.
TEST(AllocatorStress, TheHistoryReplays) {
  test::FakeBackend device(200 * kMiB);
  CachingAllocator allocator(Device::cuda(0), device);
  allocator.start_history(1 << 20, false);
  std::mt19937_64 random(7);
  std::vector<void*> live;
  const StreamView stream{Device::cuda(0), nullptr};
  const StreamView other{Device::cuda(0), reinterpret_cast<void*>(1)};
  for (int operation = 0; operation < 20000; ++operation) {
    if (live.empty() || random() % 100 < 52) {
      try {
        live.push_back(allocator.allocate(random_bytes(random), stream));
      } catch (const OutOfMemory&) {
      }
    } else {
      std::swap(live[random() % live.size()], live.back());
      if (random() % 4 == 0) allocator.record_stream(live.back(), other);
      allocator.free(live.back());
      live.pop_back();
      if (random() % 3 == 0) device.complete_events();
    }
  }
  std::map<std::uintptr_t, std::size_t> blocks, pending, segments;
  std::size_t allocated = 0, reserved = 0;
  const MemoryHistory history = allocator.history();
  EXPECT_EQ(history.dropped, 0U);
  for (const MemoryEvent& event : history.events) {
    switch (event.action) {
      case MemoryAction::segment_alloc:
        ASSERT_TRUE(segments.emplace(event.address, event.size).second);
        reserved += event.size;
        break;
      case MemoryAction::segment_free:
        ASSERT_EQ(segments.at(event.address), event.size);
        segments.erase(event.address);
        reserved -= event.size;
        break;
      case MemoryAction::alloc: {
        auto segment = segments.upper_bound(event.address);
        ASSERT_NE(segment, segments.begin());
        --segment;
        ASSERT_LE(event.address + event.size, segment->first + segment->second);
        ASSERT_TRUE(blocks.emplace(event.address, event.size).second);
        ASSERT_EQ(pending.count(event.address), 0U);
        allocated += event.size;
        break;
      }
      case MemoryAction::free_requested:
        ASSERT_EQ(blocks.at(event.address), event.size);
        blocks.erase(event.address);
        pending.emplace(event.address, event.size);
        allocated -= event.size;
        break;
      case MemoryAction::free_completed:
        ASSERT_EQ(pending.at(event.address), event.size);
        pending.erase(event.address);
        break;
      case MemoryAction::oom:
        break;
    }
  }
  EXPECT_EQ(blocks.size(), live.size());
  EXPECT_EQ(allocated, allocator.stats().current.allocated);
  EXPECT_EQ(reserved, allocator.stats().current.reserved);
  for (void* pointer : live) allocator.free(pointer);
}

TEST(AllocatorStress, ManyThreadsNeverShareABlock) {
  CachingAllocator allocator(Device::cpu());
  allocator.set_memory_limit(256 * kMiB);
  const MemoryAmounts before = allocator.stats().current;
  std::vector<std::thread> threads;
  for (unsigned char id = 1; id <= 4; ++id) {
    threads.emplace_back([&allocator, id] {
      std::mt19937_64 random(id);
      const Stream own(Device::cpu());
      const StreamView stream = id % 2 == 0 ? own.view() : StreamView{Device::cpu(), nullptr};
      struct Mine {
        unsigned char* data;
        std::size_t bytes;
      };
      std::vector<Mine> live;
      for (int operation = 0; operation < 4000; ++operation) {
        if (live.size() < 20 && random() % 2 == 0) {
          const std::size_t bytes = random() % (random() % 16 == 0 ? 2 * kMiB : 8192) + 1;
          try {
            auto* const data = static_cast<unsigned char*>(allocator.allocate(bytes, stream));
            data[0] = data[bytes / 2] = data[bytes - 1] = id;
            live.push_back({data, bytes});
          } catch (const OutOfMemory&) {
          }
        } else if (!live.empty()) {
          const Mine mine = live.back();
          live.pop_back();
          EXPECT_EQ(mine.data[0], id);
          EXPECT_EQ(mine.data[mine.bytes / 2], id);
          EXPECT_EQ(mine.data[mine.bytes - 1], id);
          allocator.free(mine.data);
        }
        if (random() % 1000 == 0) static_cast<void>(allocator.segments());
        if (random() % 1000 == 0) allocator.empty_cache();
      }
      for (const Mine& mine : live) allocator.free(mine.data);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const MemoryAmounts after = allocator.stats().current;
  EXPECT_EQ(after.allocated, before.allocated);
  EXPECT_EQ(after.requested, before.requested);
  allocator.empty_cache();
  EXPECT_EQ(allocator.stats().current.reserved, 0U);
}

}  // namespace
}  // namespace warpmeter
