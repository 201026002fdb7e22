#include "kernels/collectives/tcp_control.hpp"

#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/collectives/control.hpp"
#include "kernels/runtime/check.hpp"
#include "tests/kernels/collectives/conformance.hpp"

namespace warpmeter::collectives {
namespace {

/// Each rank in a thread: over TCP that is no different.
void with_ranks(int ranks, const std::function<void(Communicator&)>& body) {
  const TcpListener listener;
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const auto group = tcp_control(rank, ranks, rank == 0 ? &listener : nullptr, "127.0.0.1", listener.port(), 20);
        body(*group);
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

TEST(TcpControl, EveryCollective) {
  conformance::make_data();
  for (const int ranks : {1, 2, 3}) {
    with_ranks(ranks, [](Communicator& group) { conformance::Rank(group, {false, 1}).everything({0, 1, 1000}); });
  }
}

TEST(TcpControl, BytesOfAnyLength) {
  with_ranks(4, [](Communicator& group) {
    const std::vector<std::string> all =
        all_gather_bytes(group, std::string(static_cast<std::size_t>(group.rank()) * 1000, 'x'));
    for (std::size_t r = 0; r < all.size(); ++r) {
      if (all[r].size() != r * 1000) throw std::logic_error("lengths");
    }
    if (broadcast_bytes(group, 0, group.rank() == 0 ? "id" : "") != "id") throw std::logic_error("broadcast");
  });
}

TEST(TcpControl, ThoseThatDoNotComeAreNamed) {
  const TcpListener listener;
  try {
    (void)tcp_control(0, 3, &listener, "", 0, 0.2);
    FAIL();
  } catch (const CollectiveTimeout& error) {
    EXPECT_EQ(error.ranks(), (std::vector<int>{1, 2}));
  }
  EXPECT_THROW((void)tcp_control(1, 2, nullptr, "127.0.0.1", 1, 0.1), DeviceError);
}

TEST(TcpControl, OneThatLeavesBreaksTheGroup) {
  EXPECT_THROW(with_ranks(2,
                          [](Communicator& group) {
                            group.barrier();
                            if (group.rank() == 0) group.barrier();
                          }),
               PeerDied);
}

TEST(TcpListener, APortThatIsTakenIsRefusedByNumber) {
  const TcpListener first;
  try {
    const TcpListener second(first.port());
    FAIL();
  } catch (const DeviceError& error) {
    EXPECT_NE(std::string(error.what()).find(std::to_string(first.port())), std::string::npos);
  }
}

}  // namespace
}  // namespace warpmeter::collectives
