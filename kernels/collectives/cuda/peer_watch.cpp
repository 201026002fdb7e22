#include "kernels/collectives/cuda/peer_watch.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <utility>

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace warpmeter::collectives::detail {

Identity own_identity() {
  Identity self;
  std::ifstream boot("/proc/sys/kernel/random/boot_id");
  std::getline(boot, self.host);
  std::array<char, 64> space = {};
  const ssize_t length = readlink("/proc/self/ns/pid", space.data(), space.size());
  if (length > 0) self.host.append("/").append(space.data(), static_cast<std::size_t>(length));
  self.pid = static_cast<int>(getpid());
  return self;
}

PeerWatch::PeerWatch(const std::vector<Identity>& ranks, int own_rank, std::function<void(int)> on_end)
    : on_end_(std::move(on_end)) {
  const Identity& self = ranks[static_cast<std::size_t>(own_rank)];
  for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) {
    const Identity& peer = ranks[static_cast<std::size_t>(rank)];
    if (rank == own_rank || peer.host != self.host || peer.pid == self.pid) continue;
#if defined(SYS_pidfd_open)
    const int fd = static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0));
    if (fd >= 0) watched_.push_back({rank, fd});
    if (fd < 0 && errno == ESRCH) ended_.push_back(rank);
#endif
  }
  for (const int rank : ended_) on_end_(rank);
  stop_ = eventfd(0, EFD_CLOEXEC);
  if (!watched_.empty() && stop_ >= 0) thread_ = std::thread([this] { watch(); });
}

PeerWatch::~PeerWatch() {
  const std::uint64_t one = 1;
  if (thread_.joinable()) {
    while (write(stop_, &one, sizeof(one)) < 0 && errno == EINTR) {
    }
    thread_.join();
  }
  for (const Watched& peer : watched_) close(peer.fd);
  if (stop_ >= 0) close(stop_);
}

std::vector<int> PeerWatch::ended() const {
  const std::lock_guard lock(mutex_);
  return ended_;
}

void PeerWatch::watch() {
  std::vector<Watched> running = watched_;
  while (!running.empty()) {
    std::vector<pollfd> fds = {{stop_, POLLIN, 0}};
    for (const Watched& peer : running) fds.push_back({peer.fd, POLLIN, 0});
    if (poll(fds.data(), fds.size(), -1) < 0) {
      if (errno == EINTR) continue;
      return;
    }
    if (fds.front().revents != 0) return;
    for (std::size_t i = running.size(); i-- > 0;) {
      if (fds[i + 1].revents == 0) continue;
      const int rank = running[i].rank;
      running.erase(running.begin() + static_cast<std::ptrdiff_t>(i));
      {
        const std::lock_guard lock(mutex_);
        ended_.insert(std::lower_bound(ended_.begin(), ended_.end(), rank), rank);
      }
      on_end_(rank);
    }
  }
}

}  // namespace warpmeter::collectives::detail
