#include <atomic>
#include <csignal>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "kernels/collectives/launch.hpp"
#include "tests/kernels/collectives/ranks.hpp"
#include "tests/kernels/collectives/values.hpp"

namespace warpmeter::collectives {
namespace {

using ranks::require;

void sum(Communicator& communicator, std::int64_t count) {
  std::vector<float> data(static_cast<std::size_t>(count), 1.0F);
  const CollectiveBuffer view(data.data(), count, DType::fp32);
  communicator.all_reduce(view, view, ReduceOp::sum);
  require(data.empty() || data.back() == static_cast<float>(communicator.world_size()), "a wrong sum");
}

/// What `body` throws: the fault, the ranks, and whether the text has all the words.
template <class Error>
void expect_error(const std::vector<int>& ranks, const std::vector<std::string>& words,
                  const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    require(error.ranks() == ranks, std::string("other ranks are named: ") + error.what());
    for (const std::string& word : words) {
      require(std::string(error.what()).find(word) != std::string::npos, "'" + word + "' is not in: " + error.what());
    }
    return;
  }
  require(false, "nothing was thrown");
}

[[noreturn]] void sleep_for_ever() {
  for (;;) pause();
}

/// Long enough for ranks that a busy machine keeps waiting for a core: they are not the ones that must be named.
constexpr double kTimeout = 2;

TEST(ShmFailure, AKilledRankIsNamedToTheOthers) {
  const ranks::Shared<std::atomic<int>> told;
  // Waiting for the timeout would not be told from a death by its time, but by its error: a CollectiveTimeout.
  const LaunchReport report = launch_ranks(ranks::options(3), [&](Communicator& communicator) {
    sum(communicator, 5);
    if (communicator.rank() == 1) raise(SIGKILL);
    expect_error<PeerDied>({1}, {"rank 1", "killed by signal 9"}, [&] { sum(communicator, 100000); });
    expect_error<PeerDied>({1}, {"rank 1"}, [&] { communicator.barrier(); });  // from now on
    expect_error<PeerDied>({1}, {"rank 1"}, [&] { communicator.barrier_async().wait(); });
    told->fetch_add(1);
  });
  EXPECT_EQ(told->load(), 2);
  EXPECT_EQ(report.first_failed, 1);
  EXPECT_EQ(report.ranks[1].signal, SIGKILL);
  EXPECT_NE(report.reason.find("rank 1: killed by signal 9"), std::string::npos) << report.reason;
  EXPECT_TRUE(report.ranks[0].reason.empty() && report.ranks[2].reason.empty())
      << report.ranks[0].reason << " / " << report.ranks[2].reason;
}

TEST(ShmFailure, ARanksExceptionReachesTheOthersWithItsWords) {
  const LaunchReport report = launch_ranks(ranks::options(3), [&](Communicator& communicator) {
    communicator.barrier();
    if (communicator.rank() == 2) throw std::runtime_error("the disk is full");
    expect_error<PeerDied>({2}, {"the disk is full"}, [&] { sum(communicator, 3); });
    sum(communicator, 3);  // throws again: this rank comes down with rank 2
  });
  EXPECT_EQ(report.first_failed, 2);
  EXPECT_EQ(report.reason, "rank 2: the disk is full");
  EXPECT_NE(report.ranks[0].reason.find("the disk is full"), std::string::npos) << report.ranks[0].reason;
}

TEST(ShmFailure, ARankThatHasLeftIsNamed) {
  const LaunchReport report = launch_ranks(ranks::options(2), [&](Communicator& communicator) {
    sum(communicator, 3);
    if (communicator.rank() == 0) return;
    expect_error<PeerDied>({0}, {"rank 0 has left", "all_reduce sum of 4 fp32 (16 bytes)"},
                           [&] { sum(communicator, 4); });
  });
  EXPECT_TRUE(report.ok()) << report.reason;
}

TEST(ShmFailure, ATimeoutNamesThoseThatDidNotCome) {
  const ranks::Shared<std::atomic<int>> told;
  LaunchOptions options = ranks::options(4);
  options.shm.timeout_s = kTimeout;
  options.grace_s = 0.1;
  const LaunchReport report = launch_ranks(options, [&](Communicator& communicator) {
    sum(communicator, 3);
    if (communicator.rank() == 1 || communicator.rank() == 2) {
      while (told->load() < 2) usleep(1000);
      // They come too late, and hear the same.
      expect_error<CollectiveTimeout>({1, 2}, {"ranks 1 and 2"}, [&] { communicator.barrier(); });
      return;
    }
    expect_error<CollectiveTimeout>({1, 2}, {"2 s", "ranks 1 and 2", "all_reduce sum of 262144 fp32 (1048576 bytes)"},
                                    [&] { sum(communicator, 262144); });
    told->fetch_add(1);
  });
  EXPECT_TRUE(report.ok()) << report.reason;
}

TEST(ShmFailure, ARankThatStopsInTheMiddleTimesOut) {
  LaunchOptions options = ranks::options(2);
  options.shm.timeout_s = kTimeout;
  options.grace_s = 0.1;
  const LaunchReport report = launch_ranks(options, [&](Communicator& communicator) {
    communicator.barrier();
    if (communicator.rank() == 1) {
      std::thread([pid = getpid()] {
        usleep(20000);
        kill(pid, SIGSTOP);
      }).detach();
    }
    std::vector<float> data(1 << 20, 1.0F);
    const CollectiveBuffer view(data.data(), 1 << 20, DType::fp32);
    expect_error<CollectiveTimeout>({1}, {"rank 1", "4194304 bytes"}, [&] {
      for (;;) communicator.all_reduce(view, view, ReduceOp::max);
    });
    throw std::runtime_error("told");
  });
  EXPECT_EQ(report.first_failed, 0);
  EXPECT_EQ(report.reason, "rank 0: told");
  EXPECT_EQ(report.ranks[1].signal, SIGKILL) << "a stopped process is killed after the grace";
}

TEST(ShmFailure, DifferentCallsAreAMismatchNotAHang) {
  const LaunchReport sizes = launch_ranks(ranks::options(3), [&](Communicator& communicator) {
    expect_error<CollectiveMismatch>(
        {2}, {"rank 0 calls all_reduce sum of 4 fp32 (16 bytes), rank 2 all_reduce sum of 50000 fp32"},
        [&] { sum(communicator, communicator.rank() == 2 ? 50000 : 4); });
  });
  EXPECT_TRUE(sizes.ok()) << sizes.reason;
  const LaunchReport kinds = launch_ranks(ranks::options(2), [&](Communicator& communicator) {
    expect_error<CollectiveMismatch>({1}, {"rank 0 calls barrier, rank 1 all_reduce"}, [&] {
      if (communicator.rank() == 0) return communicator.barrier();
      sum(communicator, 4);
    });
  });
  EXPECT_TRUE(kinds.ok()) << kinds.reason;
}

// By the death, not by the timeout: the others' error is a PeerDied.
TEST(ShmFailure, AKillAtAnyMomentEndsTheOthers) {
  for (int round = 0; round < 20; ++round) {
    const int victim = static_cast<int>(values::hash(1, static_cast<std::uint64_t>(round)) % 3);
    const auto delay_us = static_cast<unsigned>(values::hash(2, static_cast<std::uint64_t>(round)) % 15000);
    const LaunchReport report = launch_ranks(ranks::options(3), [&](Communicator& communicator) {
      if (communicator.rank() == victim) {
        std::thread([delay_us] {
          usleep(delay_us);
          kill(getpid(), SIGKILL);
        }).detach();
      }
      expect_error<PeerDied>({victim}, {"rank " + std::to_string(victim)}, [&] {
        for (std::uint64_t i = 0;; ++i) sum(communicator, static_cast<std::int64_t>(values::hash(3, i) % 200000));
      });
    });
    ASSERT_EQ(report.first_failed, victim) << report.reason << ", round " << round;
    ASSERT_EQ(report.ranks[static_cast<std::size_t>(victim)].signal, SIGKILL);
    for (int r = 0; r < 3; ++r) {
      if (r == victim) continue;
      ASSERT_EQ(report.ranks[static_cast<std::size_t>(r)].reason, "") << "round " << round;
    }
  }
}

TEST(ShmFailure, TheWatchdogEndsAStuckRunAndNamesTheCollective) {
  LaunchOptions options = ranks::options(2);
  options.timeout_s = kTimeout;  // rank 0 must be in the sum by then
  const LaunchReport report = launch_ranks(options, [&](Communicator& communicator) {
    if (communicator.rank() == 1) sleep_for_ever();
    sum(communicator, 1000);
  });
  EXPECT_TRUE(report.timed_out);
  EXPECT_EQ(report.first_failed, 0);
  EXPECT_NE(report.reason.find("all_reduce sum of 1000 fp32 (4000 bytes)"), std::string::npos) << report.reason;
  EXPECT_FALSE(report.ranks[1].reason.empty());
}

}  // namespace
}  // namespace warpmeter::collectives
