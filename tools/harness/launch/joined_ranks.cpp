#include <algorithm>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>

#include <fmt/core.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kernels/collectives/collective_error.hpp"
#include "kernels/runtime/check.hpp"
#include "tools/harness/launch/ranks.hpp"
#include "tools/harness/sampler.hpp"

namespace warpmeter::harness::launch {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kQuitSeconds = 5;
constexpr double kHelloSeconds = 5;  ///< for what has connected to say who it is

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

class JoinedRanks final : public Ranks {
 public:
  JoinedRanks(int world_size, std::function<void(Link)> be_rank_0) {
    members_.resize(static_cast<std::size_t>(world_size));
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
      throw DeviceError("no socket for rank 0", false);
    }
    const Hello hello = parse_hello(hello_text(0));
    Member& own = members_.front();
    own.link = Link(ends[0]);
    own.pid = hello.pid;
    own.host = hello.host;
    own.boot = hello.boot;
    thread_ = std::thread([this, be_rank_0 = std::move(be_rank_0), fd = ends[1]] {
      be_rank_0(Link(fd));
      done_.store(true);
    });
  }
  ~JoinedRanks() override {
    if (thread_.joinable()) quit();
  }

  void take_all(const collectives::TcpListener& listener, const std::string& where, const std::string& secret,
                double timeout_s) {
    const auto begin = Clock::now();
    std::vector<int> missing;
    for (int r = 1; r < size(); ++r) missing.push_back(r);
    while (!missing.empty()) {
      throw_if_interrupted();
      if (seconds_since(begin) > timeout_s) {
        throw DeviceError(fmt::format("{} of {} {} not come to {} within {:g} s", collectives::name_ranks(missing),
                                      size(), missing.size() == 1 ? "has" : "have", where, timeout_s),
                          false);
      }
      const int fd = listener.accept(0.1);
      if (fd < 0) continue;
      Link link(fd);
      const auto message = link.receive(kHelloSeconds);
      const std::string mark = secret + " ";
      if (!message || message->say != Say::hello || message->text.rfind(mark, 0) != 0) continue;  // a stranger
      const Hello hello = parse_hello(message->text.substr(mark.size()));
      const auto place = std::find(missing.begin(), missing.end(), hello.rank);
      if (place == missing.end()) {
        throw DeviceError(
            fmt::format("two processes are rank {} of {}: each must have a RANK of its own", hello.rank, size()),
            false);
      }
      missing.erase(place);
      Member& member = members_[static_cast<std::size_t>(hello.rank)];
      member.pid = hello.pid;
      member.host = hello.host;
      member.boot = hello.boot;
      link.send(Say::hello, secret);
      member.link = std::move(link);
    }
    count_locals();
    if (hosts() > 1) note_addresses();
  }

  [[nodiscard]] std::optional<std::string> ended(int /*rank*/) override { return std::nullopt; }
  void kill() override {
    for (Member& member : members_) {
      // So that the thread's end sees it, too.
      if (member.link.open()) shutdown(member.link.fd(), SHUT_RDWR);
      member.link.close();
    }
    wait_for_thread(1);
  }
  void quit() override {
    tell_to_quit();
    wait_for_thread(kQuitSeconds);
    for (Member& member : members_) {
      // They close when they go.
      const auto begin = Clock::now();
      while (&member != &members_.front() && member.link.open() && seconds_since(begin) < 1 && member.link.pump()) {
        poll(nullptr, 0, 5);
      }
      member.link.close();
    }
  }
  [[nodiscard]] bool reusable() const override { return true; }
  [[nodiscard]] bool stuck_here() const override { return stuck_; }

 private:
  /// A host's address: as its first rank's connection has it; rank 0's as a rank of another host has reached it.
  void note_addresses() {
    const auto same_host = [](const Member& a, const Member& b) { return a.host == b.host && a.boot == b.boot; };
    const Member& first = members_.front();
    std::string own;
    for (Member& member : members_) {
      if (same_host(member, first)) continue;
      member.address = collectives::peer_address(member.link.fd());
      if (own.empty()) own = collectives::local_address(member.link.fd());
    }
    for (Member& member : members_) {
      if (same_host(member, first)) member.address = own;
    }
  }

  void wait_for_thread(double seconds) {
    if (!thread_.joinable()) return;
    const auto begin = Clock::now();
    while (!done_.load() && seconds_since(begin) < seconds) poll(nullptr, 0, 2);
    if (done_.load()) {
      thread_.join();
    } else {
      stuck_ = true;  // in a library that waits for a rank that is gone
      thread_.detach();
    }
  }

  std::atomic<bool> done_{false};
  bool stuck_ = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Ranks> join_ranks(int world_size, const collectives::TcpListener& listener, const std::string& where,
                                  const std::string& secret, double timeout_s, std::function<void(Link)> be_rank_0) {
  auto ranks = std::make_unique<JoinedRanks>(world_size, std::move(be_rank_0));
  ranks->take_all(listener, where, secret, timeout_s);
  return ranks;
}

Link link_to_rank_0(int rank, const std::vector<std::string>& hosts, int port, const std::string& secret,
                    double timeout_s) {
  const auto begin = Clock::now();
  std::string reason = "no address is known";
  do {
    for (const std::string& host : hosts) {
      try {
        Link link(collectives::tcp_connect(host, port, 0));
        link.send(Say::hello, secret + " " + hello_text(rank));
        const auto welcome = link.receive(timeout_s);
        if (welcome && welcome->say == Say::hello && welcome->text == secret) return link;
        reason = host + ":" + std::to_string(port) + " is something else";
      } catch (const DeviceError& e) {
        reason = e.what();
      }
    }
    poll(nullptr, 0, 50);
  } while (seconds_since(begin) < timeout_s);
  throw DeviceError(fmt::format("rank {} has not found rank 0 within {:g} s: {}", rank, timeout_s, reason), false);
}

}  // namespace warpmeter::harness::launch
