#include "kernels/collectives/cuda/peer_watch.hpp"

#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace warpmeter::collectives::detail {
namespace {

pid_t sleeping_child() {
  const pid_t pid = fork();
  if (pid == 0) {
    for (;;) pause();
  }
  return pid;
}

TEST(PeerWatch, SeesAKilledProcessAndNoOther) {
  const pid_t killed = sleeping_child();
  const pid_t living = sleeping_child();
  const Identity self = own_identity();
  {
    std::atomic<int> told{-1};
    const PeerWatch watch({self, {self.host, killed}, {self.host, living}, {"another host", killed}}, 0,
                          [&](int rank) { told.store(rank); });
    EXPECT_TRUE(watch.ended().empty());
    kill(killed, SIGKILL);
    const auto begin = std::chrono::steady_clock::now();
    while (told.load() < 0 && std::chrono::steady_clock::now() - begin < std::chrono::seconds(60)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(told.load(), 1);
    EXPECT_EQ(watch.ended(), std::vector<int>{1});
  }
  kill(living, SIGKILL);
  for (const pid_t pid : {killed, living}) waitpid(pid, nullptr, 0);
}

TEST(PeerWatch, AProcessThatHasEndedBefore) {
  const pid_t ended = sleeping_child();
  kill(ended, SIGKILL);
  waitpid(ended, nullptr, 0);
  const Identity self = own_identity();
  int told = -1;
  const PeerWatch watch({{self.host, ended}, self}, 1, [&](int rank) { told = rank; });
  EXPECT_EQ(told, 0);
  EXPECT_EQ(watch.ended(), std::vector<int>{0});
}

}  // namespace
}  // namespace warpmeter::collectives::detail
