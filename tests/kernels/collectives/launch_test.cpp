#include "kernels/collectives/launch.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/kernels/collectives/ranks.hpp"

namespace warpmeter::collectives {
namespace {

std::set<std::string> names_in(const char* folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

TEST(Launch, EachRankIsAProcessOfItsOwn) {
  const ranks::Shared<std::array<std::atomic<int>, 4>> pids;
  const LaunchReport report = launch_ranks(ranks::options(4), [&](Communicator& communicator) {
    ranks::require(communicator.world_size() == 4, "world size");
    (*pids)[static_cast<std::size_t>(communicator.rank())] = getpid();
  });
  EXPECT_TRUE(report.ok()) << report.reason;
  EXPECT_EQ(report.ranks.size(), 4U);
  std::set<int> different = {getpid()};
  for (const auto& pid : *pids) different.insert(pid.load());
  EXPECT_EQ(different.size(), 5U);
}

TEST(Launch, NothingIsLeftBehind) {
  const std::set<std::string> before = names_in("/dev/shm");
  // Other programs' files come and go; what a rank has left behind stays.
  const auto nothing_stays = [&] {
    for (int look = 0; look < 600; ++look) {
      const std::set<std::string> now = names_in("/dev/shm");
      if (std::includes(before.begin(), before.end(), now.begin(), now.end())) return true;
      usleep(100'000);
    }
    return false;
  };
  const std::size_t descriptors = names_in("/proc/self/fd").size();
  for (const bool dies : {false, true}) {
    (void)launch_ranks(ranks::options(3), [&](Communicator& communicator) {
      const CommunicatorBuffer buffer = communicator.allocate(1 << 20);
      communicator.barrier();
      if (dies && communicator.rank() == 0) raise(SIGKILL);
      communicator.barrier();
    });
    EXPECT_TRUE(nothing_stays());
    EXPECT_EQ(names_in("/proc/self/fd").size(), descriptors);
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
    EXPECT_EQ(errno, ECHILD) << "a child is left";
  }
}

TEST(Launch, AnExitOfItsOwnIsAFailureWithItsStatus) {
  const LaunchReport report = launch_ranks(ranks::options(2), [&](Communicator& communicator) {
    communicator.barrier();
    if (communicator.rank() == 1) _exit(7);
    communicator.barrier();
  });
  EXPECT_EQ(report.first_failed, 1);
  EXPECT_EQ(report.ranks[1].exit_code, 7);
  EXPECT_EQ(report.reason, "rank 1: exit status 7");
  EXPECT_NE(report.ranks[0].reason.find("exit status 7"), std::string::npos) << report.ranks[0].reason;
}

TEST(Launch, ARankThatDiesBeforeItsFirstCallIsFound) {
  const LaunchReport report = launch_ranks(ranks::options(2), [&](Communicator& communicator) {
    if (communicator.rank() == 1) throw std::runtime_error("no input");
    communicator.barrier();
  });
  EXPECT_EQ(report.reason, "rank 1: no input");
}

TEST(Launch, TheRanksDieWithTheirParent) {
  const ranks::Shared<std::array<std::atomic<int>, 2>> pids;
  // Orphans come to this process, which then sees them end.
  ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  const pid_t parent = fork();
  ASSERT_GE(parent, 0);
  if (parent == 0) {
    (void)launch_ranks(ranks::options(2), [&](Communicator& communicator) {
      (*pids)[static_cast<std::size_t>(communicator.rank())] = getpid();
      for (;;) communicator.barrier();
    });
    _exit(0);
  }
  while ((*pids)[0] == 0 || (*pids)[1] == 0) usleep(1000);
  kill(parent, SIGKILL);
  EXPECT_EQ(waitpid(parent, nullptr, 0), parent);
  for (const auto& pid : *pids) {
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid.load());  // a rank that lives on would hang the test
    EXPECT_NE(status, 0);
  }
  prctl(PR_SET_CHILD_SUBREAPER, 0);
}

}  // namespace
}  // namespace warpmeter::collectives
