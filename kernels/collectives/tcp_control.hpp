#pragma once

#include <memory>
#include <string>

#include "kernels/collectives/communicator.hpp"

namespace warpmeter::collectives {

/// A listening TCP socket of this host on any free port.
class TcpListener {
 public:
  /// Port 0: any that is free. Throws DeviceError with the system's words.
  explicit TcpListener(int port = 0);
  /// Takes over a listening descriptor.
  [[nodiscard]] static TcpListener adopt(int fd) { return TcpListener(fd, 0); }
  ~TcpListener();
  TcpListener(const TcpListener&) = delete;
  TcpListener& operator=(const TcpListener&) = delete;

  [[nodiscard]] int port() const noexcept { return port_; }
  [[nodiscard]] int fd() const noexcept { return fd_; }
  /// The next connection's descriptor; -1 after `seconds`.
  [[nodiscard]] int accept(double seconds) const;

 private:
  TcpListener(int fd, int port) noexcept : fd_(fd), port_(port) {}

  int fd_ = -1;
  int port_ = 0;
};

/// Connects, trying again until `seconds` have passed: the other side may not be there yet. Throws DeviceError with
/// the last reason.
[[nodiscard]] int tcp_connect(const std::string& host, int port, double seconds);
/// The address of this side, or of the other one, of a connected socket: "10.0.0.3".
[[nodiscard]] std::string local_address(int fd);
[[nodiscard]] std::string peer_address(int fd);

/// A group over several hosts for ids, addresses and barriers: every rank has a connection to rank 0, which does the
/// work. Not for measuring. Rank 0 gives a listener (connections are accepted here), the others its address.
/// Throws CollectiveTimeout with the ranks that have not come, PeerDied when a connection breaks.
[[nodiscard]] std::unique_ptr<Communicator> tcp_control(int rank, int world_size, const TcpListener* listener,
                                                        const std::string& host, int port, double timeout_s);

}  // namespace warpmeter::collectives
