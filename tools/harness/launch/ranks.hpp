#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "kernels/collectives/tcp_control.hpp"
#include "tools/harness/launch/link.hpp"

namespace warpmeter::harness::launch {

/// The processes of a group's ranks as their leader sees them: a link to each, and how each ends.
class Ranks {
 public:
  virtual ~Ranks() = default;
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  struct Member {
    Link link{-1};
    pid_t pid = 0;
    std::string host;  ///< its name
    std::string boot;  ///< tells hosts of one name apart
    int local_rank = 0;
    std::string address;  ///< of its host as the others reach it; empty where all are on one
  };
  [[nodiscard]] std::vector<Member>& members() noexcept { return members_; }
  [[nodiscard]] int size() const noexcept { return static_cast<int>(members_.size()); }
  [[nodiscard]] int hosts() const;
  [[nodiscard]] int local_size(const Member& member) const;

  /// How a rank's process has ended ("killed by signal 9 (Killed)"); none while it runs or nobody can know.
  [[nodiscard]] virtual std::optional<std::string> ended(int rank) = 0;
  /// Ends them all, now; returns when nothing of them is left on this host.
  virtual void kill() = 0;
  /// Tells them to quit and waits a few seconds for it; then as kill().
  virtual void quit() = 0;
  /// The processes are others for every group, or the same.
  [[nodiscard]] virtual bool reusable() const = 0;
  /// After kill() a thread of this process may still be in a library: leave by _exit().
  [[nodiscard]] virtual bool stuck_here() const { return false; }

 protected:
  Ranks() = default;
  /// Numbers the ranks of each host.
  void count_locals();
  void tell_to_quit();

  std::vector<Member> members_;
};

/// What a rank says first: "RANK PID HOST BOOT".
[[nodiscard]] std::string hello_text(int rank);
struct Hello {
  int rank = -1;
  pid_t pid = 0;
  std::string host, boot;
};
/// Throws std::runtime_error for what is none.
[[nodiscard]] Hello parse_hello(const std::string& text);

/// Starts `world_size` processes of this program on this host, with the same arguments; by the MPI library's launcher
/// where `by_mpirun`. Each finds its leader by the environment. They die with this process. Throws DeviceError with the
/// reason when they do not all come within `timeout_s`.
[[nodiscard]] std::unique_ptr<Ranks> start_ranks(int world_size, bool by_mpirun, const std::vector<std::string>& argv,
                                                 double timeout_s);

/// Ranks that a launcher has started, seen from rank 0: itself, in a thread that `be_rank_0` is called in, and those
/// that come to `listener` and know `secret` within `timeout_s`. Throws DeviceError that names those that have not
/// come.
[[nodiscard]] std::unique_ptr<Ranks> join_ranks(int world_size, const collectives::TcpListener& listener,
                                                const std::string& where, const std::string& secret, double timeout_s,
                                                std::function<void(Link)> be_rank_0);

/// The other side: the link of rank `rank` to rank 0, which listens at one of `hosts`.
[[nodiscard]] Link link_to_rank_0(int rank, const std::vector<std::string>& hosts, int port, const std::string& secret,
                                  double timeout_s);

/// In a process that start_ranks() has started: the link to the leader, the hello said. nullopt in any other process.
[[nodiscard]] std::optional<Link> link_of_started_rank();

}  // namespace warpmeter::harness::launch
