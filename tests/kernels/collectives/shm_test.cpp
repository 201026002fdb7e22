#include "kernels/collectives/shm.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include "kernels/collectives/detail/shm_wait.hpp"
#include "kernels/collectives/launch.hpp"
#include "kernels/runtime/allocator.hpp"
#include "tests/kernels/collectives/conformance.hpp"
#include "tests/kernels/collectives/ranks.hpp"

namespace warpmeter::collectives {
namespace {

using ranks::require;

class ShmWorldSize : public testing::TestWithParam<int> {};

TEST_P(ShmWorldSize, EveryCollectiveTypeAndOperation) {
  conformance::make_data();
  const LaunchReport report = launch_ranks(ranks::options(GetParam()), [&](Communicator& communicator) {
    conformance::Rank(communicator).everything({0, 1, 3, 17, 1000, conformance::kLargest});
  });
  EXPECT_TRUE(report.ok()) << report.reason;
}

TEST_P(ShmWorldSize, SeveralThreadsSmallChunksOddAddresses) {
  conformance::make_data();
  LaunchOptions options = ranks::options(GetParam(), 3);
  options.shm.chunk_bytes = 4096;  // many chunks, and a last one that is short
  const LaunchReport report = launch_ranks(options, [&](Communicator& communicator) {
    conformance::Rank(communicator, {}, 1).everything({17, 100003});
  });
  EXPECT_TRUE(report.ok()) << report.reason;
}

INSTANTIATE_TEST_SUITE_P(Worlds, ShmWorldSize, testing::Values(1, 2, 3, 4, 6));

TEST(Shm, AsynchronousCallsReturnBeforeTheOthersCome) {
  const ranks::Shared<std::atomic<bool>> called;
  const LaunchReport report = launch_ranks(ranks::options(2), [&](Communicator& communicator) {
    std::vector<float> a(50000, 1.0F + static_cast<float>(communicator.rank())), b(3, 2.0F), c(a.size());
    const auto view = [](std::vector<float>& v) {
      return CollectiveBuffer(v.data(), static_cast<std::int64_t>(v.size()), DType::fp32);
    };
    if (communicator.rank() == 1) {
      while (!called->load()) std::this_thread::yield();
    }
    // Rank 1 calls only after rank 0 has returned from both.
    const Work first = communicator.all_reduce_async(view(a), view(a), ReduceOp::sum);
    const Work second = communicator.all_reduce_async(view(b), view(b), ReduceOp::max);
    if (communicator.rank() == 0) {
      require(!first.done() && !second.done(), "done without the other rank");
      called->store(true);
    }
    second.wait();
    require(first.done(), "they run in order");
    first.wait();
    require(std::all_of(a.begin(), a.end(), [](float v) { return v == 3.0F; }), "the sum");
    require(b[2] == 2.0F, "the maximum");

    // A synchronous call waits for those before it.
    const Work third = communicator.all_reduce_async(view(a), view(c), ReduceOp::sum);
    communicator.all_reduce(view(c), view(c), ReduceOp::sum);
    require(third.done() && c[49999] == 12.0F, "order with a synchronous call");
    communicator.barrier_async().wait();
  });
  EXPECT_TRUE(report.ok()) << report.reason;
}

TEST(Shm, ManyAsynchronousCallsInFlight) {
  const LaunchReport report = launch_ranks(
      ranks::options(3), [&](Communicator& communicator) { conformance::Rank(communicator).asynchronous(); });
  EXPECT_TRUE(report.ok()) << report.reason;
}

TEST(Shm, ABarrierHoldsUntilAllHaveCome) {
  const ranks::Shared<std::atomic<int>> come;
  const LaunchReport report = launch_ranks(ranks::options(4), [&](Communicator& communicator) {
    for (int round = 1; round <= 200; ++round) {
      come->fetch_add(1);
      communicator.barrier();
      require(come->load() >= 4 * round, "someone was not there in round " + std::to_string(round));
      communicator.barrier();
    }
  });
  EXPECT_TRUE(report.ok()) << report.reason;
}

// Two ranks on one core would wait for each other's time slices.
TEST(Shm, RanksOnOneCorePart) {
  cpu_set_t usable;
  ASSERT_EQ(sched_getaffinity(0, sizeof(usable), &usable), 0);
  if (CPU_COUNT(&usable) < 2 || properties(Device::cpu()).cores < 2) GTEST_SKIP() << "one core";
  std::size_t core = 0;
  while (!CPU_ISSET(core, &usable)) ++core;
  constexpr int kRounds = 20;
  struct Places {
    std::atomic<int> of[2];
    std::atomic<int> quiet{0}, apart{0};
  };
  const ranks::Shared<Places> places;
  const LaunchReport report = launch_ranks(ranks::options(2), [&](Communicator& communicator) {
    for (int round = 0; round < kRounds; ++round) {
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(core, &one);
      communicator.barrier();
      require(sched_setaffinity(0, sizeof(one), &one) == 0, "pinned");
      require(sched_setaffinity(0, sizeof(usable), &usable) == 0, "free again");
      timespec pause = {0, 3'000'000};  // a rank moves no more often than that
      nanosleep(&pause, nullptr);
      const bool quiet = !detail::cores_are_taken(2);
      for (int call = 0; call < 300; ++call) communicator.barrier();
      places->of[communicator.rank()].store(sched_getcpu());
      communicator.barrier();
      // A rank does not move to a core that is busy, whether it was from the start or has become so.
      if (communicator.rank() != 0 || !quiet || detail::cores_are_taken(2)) continue;
      places->quiet.fetch_add(1);
      if (places->of[0].load() != places->of[1].load()) places->apart.fetch_add(1);
    }
  });
  EXPECT_TRUE(report.ok()) << report.reason;
  // Other programs may push them together again, seldom in so short a time.
  EXPECT_GE(places->apart.load(), places->quiet.load() / 4);
}

TEST(Shm, MoreThreadsThanCoresTakeThem) {
  std::atomic<bool> over{false};
  std::vector<std::thread> busy;
  for (long i = 0; i <= sysconf(_SC_NPROCESSORS_ONLN); ++i) {
    busy.emplace_back([&over] {
      while (!over.load()) {
      }
    });
  }
  bool taken = false;
  for (int look = 0; look < 1000 && !taken; ++look) taken = detail::cores_are_taken(1);
  over.store(true);
  for (std::thread& thread : busy) thread.join();
  EXPECT_TRUE(taken);
}

TEST(Shm, TheHeapServesItsSizeAgainAndAgain) {
  LaunchOptions options = ranks::options(2);
  options.shm.heap_bytes = 1 << 20;
  const LaunchReport report = launch_ranks(options, [&](Communicator& communicator) {
    for (int round = 0; round < 3; ++round) {
      const CommunicatorBuffer first = communicator.allocate(600 << 10);
      bool refused = false;
      try {
        (void)communicator.allocate(600 << 10);
      } catch (const OutOfMemory& error) {
        refused = error.requested() == 600U << 10 && error.limit() == 1U << 20;
      }
      require(refused, "more than the heap has");
      const CommunicatorBuffer second = communicator.allocate(400 << 10);
      std::memset(first.data(), 1, first.bytes());
      std::memset(second.data(), 2, second.bytes());
      require(static_cast<const char*>(first.data())[first.bytes() - 1] == 1, "blocks overlap");
      require(reinterpret_cast<std::uintptr_t>(second.data()) % 64 == 0, "alignment");
    }
  });
  EXPECT_TRUE(report.ok()) << report.reason;
}

}  // namespace
}  // namespace warpmeter::collectives
