#include "kernels/collectives/detail/thread_team.hpp"

#include <atomic>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/runtime/check.hpp"

namespace warpmeter::collectives::detail {
namespace {

TEST(ThreadTeam, RunsEachThreadAtOnce) {
  ThreadTeam team(4);
  for (int round = 0; round < 50; ++round) {
    for (int threads = 1; threads <= 4; ++threads) {
      std::vector<int> ran(4);
      std::atomic<int> here{0};
      team.run(threads, [&](int thread) {
        ++ran.at(static_cast<std::size_t>(thread));
        // All must be inside together, or this never ends.
        ++here;
        while (here.load() < threads) std::this_thread::yield();
      });
      for (int t = 0; t < 4; ++t) EXPECT_EQ(ran[static_cast<std::size_t>(t)], t < threads ? 1 : 0);
    }
  }
}

TEST(ThreadTeam, AnExceptionOfAnyThreadComesOutAndTheTeamLivesOn) {
  ThreadTeam team(3);
  for (int bad = 0; bad < 3; ++bad) {
    EXPECT_THROW(team.run(3,
                          [&](int thread) {
                            if (thread == bad) throw std::runtime_error("no");
                          }),
                 std::runtime_error);
  }
  std::atomic<int> ran{0};
  team.run(3, [&](int) { ++ran; });
  EXPECT_EQ(ran.load(), 3);
}

TEST(ThreadTeam, RefusesMoreThreadsThanItHas) {
  ThreadTeam team(2);
  EXPECT_THROW(team.run(3, [](int) {}), CheckError);
  EXPECT_THROW(ThreadTeam(0), CheckError);
}

}  // namespace
}  // namespace warpmeter::collectives::detail
