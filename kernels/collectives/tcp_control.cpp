#include "kernels/collectives/tcp_control.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <vector>

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kernels/collectives/detail/host_communicator.hpp"
#include "kernels/runtime/check.hpp"

namespace warpmeter::collectives {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void send_at_once(int fd) {
  const int yes = 1;
  (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
}

std::string text_of(const sockaddr_storage& address, socklen_t length) {
  char host[NI_MAXHOST] = {};
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, host, sizeof(host), nullptr, 0,
                  NI_NUMERICHOST) != 0) {
    return "";
  }
  const std::string text(host);
  return text.rfind("::ffff:", 0) == 0 ? text.substr(7) : text;  // IPv4 through an IPv6 socket
}

class TcpControl final : public detail::HostCommunicator {
 public:
  TcpControl(int rank, int world_size, std::vector<int> links)
      : HostCommunicator(rank, world_size), links_(std::move(links)) {}
  ~TcpControl() override {
    stop();
    for (const int fd : links_) {
      if (fd >= 0) close(fd);
    }
  }
  [[nodiscard]] std::string_view backend() const noexcept override { return "tcp"; }

 private:
  /// Rank 0 gathers every input, makes each rank's output, and sends it.
  void execute(const Collective& c) override {
    const std::size_t in = c.kind == CollectiveKind::barrier ? 0 : c.input.bytes();
    const std::size_t out = c.kind == CollectiveKind::barrier ? 0 : c.output.bytes();
    if (rank() != 0) {
      send_block(0, static_cast<const char*>(c.input.data), in, c);
      return receive_block(0, static_cast<char*>(c.output.data), out, c);
    }
    const auto n = static_cast<std::size_t>(world_size());
    std::vector<char> inputs(in * n);
    if (in > 0) std::memcpy(inputs.data(), c.input.data, in);
    for (int r = 1; r < world_size(); ++r) receive_block(r, inputs.data() + static_cast<std::size_t>(r) * in, in, c);
    std::vector<char> whole;
    switch (c.kind) {
      case CollectiveKind::barrier:
        break;
      case CollectiveKind::all_gather:
        whole = inputs;
        break;
      case CollectiveKind::broadcast: {
        const auto root = inputs.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(c.root) * in);
        whole.assign(root, root + static_cast<std::ptrdiff_t>(in));
        break;
      }
      case CollectiveKind::all_reduce:
      case CollectiveKind::reduce_scatter: {
        whole.resize(in);
        std::vector<const char*> sources;
        for (std::size_t r = 0; r < n; ++r) sources.push_back(inputs.data() + r * in);
        char* const destination = whole.data();
        detail::reduce({sources.data(), world_size(), &destination, 1, c.input.count, c.input.dtype, c.op});
        break;
      }
    }
    const std::size_t step = c.kind == CollectiveKind::reduce_scatter ? out : 0;
    for (int r = 1; r < world_size(); ++r) {
      send_block(r, whole.data() + static_cast<std::size_t>(r) * step, out, c);
    }
    if (out > 0) std::memcpy(c.output.data, whole.data(), out);
  }

  // Between rank 0 and another; a byte more says that even nothing has come.
  void send_block(int r, const char* data, std::size_t bytes, const Collective& c) {
    if (bytes > 0) send_exactly(r, data, bytes, c);
    send_exactly(r, "!", 1, c);
  }
  void receive_block(int r, char* data, std::size_t bytes, const Collective& c) {
    if (bytes > 0) receive(r, data, bytes, c);
    char token = 0;
    receive(r, &token, 1, c);
  }

  void send_exactly(int r, const char* data, std::size_t bytes, const Collective& c) {
    while (bytes > 0) {
      const ssize_t n = ::send(link(r), data, bytes, MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) broken(r, c);
      data += n;
      bytes -= static_cast<std::size_t>(n);
    }
  }
  void receive(int r, char* data, std::size_t bytes, const Collective& c) {
    while (bytes > 0) {
      const ssize_t n = recv(link(r), data, bytes, 0);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) broken(r, c);
      data += n;
      bytes -= static_cast<std::size_t>(n);
    }
  }
  [[noreturn]] void broken(int r, const Collective& c) {
    throw PeerDied({r}, "rank " + std::to_string(r) + "'s connection is closed; rank " + std::to_string(rank()) +
                            " waits for it in " + describe(c));
  }
  [[nodiscard]] int link(int r) const { return links_[static_cast<std::size_t>(r)]; }

  std::vector<int> links_;  ///< rank 0: to every other; else the first is to rank 0
};

}  // namespace

TcpListener::TcpListener(int port) {
  const auto refuse = [&](const char* what) {
    const std::string reason = std::string(what) + " port " + std::to_string(port) + ": " + std::strerror(errno);
    if (fd_ >= 0) close(fd_);
    throw DeviceError(reason, false);
  };
  // An IPv6 socket takes both kinds; where there is no IPv6, one of IPv4.
  int family = AF_INET6;
  fd_ = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd_ < 0) fd_ = socket(family = AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd_ < 0) refuse("no socket for");
  const int yes = 1, no = 0;
  (void)setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  sockaddr_storage address = {};
  socklen_t length = sizeof(sockaddr_in);
  if (family == AF_INET6) {
    (void)setsockopt(fd_, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
    auto& six = reinterpret_cast<sockaddr_in6&>(address);
    six.sin6_family = AF_INET6;
    six.sin6_addr = in6addr_any;
    six.sin6_port = htons(static_cast<std::uint16_t>(port));
    length = sizeof(sockaddr_in6);
  } else {
    auto& four = reinterpret_cast<sockaddr_in&>(address);
    four.sin_family = AF_INET;
    four.sin_addr.s_addr = htonl(INADDR_ANY);
    four.sin_port = htons(static_cast<std::uint16_t>(port));
  }
  if (bind(fd_, reinterpret_cast<const sockaddr*>(&address), length) != 0 || listen(fd_, 512) != 0) {
    refuse("cannot listen on");
  }
  length = sizeof(address);
  (void)getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &length);
  port_ = ntohs(family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                   : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

TcpListener::~TcpListener() {
  close(fd_);
}

int TcpListener::accept(double seconds) const {
  pollfd ready = {fd_, POLLIN, 0};
  if (poll(&ready, 1, std::max(0, static_cast<int>(seconds * 1000))) <= 0) return -1;
  const int fd = accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC);
  if (fd >= 0) send_at_once(fd);
  return fd;
}

int tcp_connect(const std::string& host, int port, double seconds) {
  const auto begin = Clock::now();
  std::string reason;
  do {
    addrinfo wish = {};
    wish.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    const int failed = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wish, &found);
    if (failed != 0) reason = gai_strerror(failed);
    for (const addrinfo* a = found; failed == 0 && a != nullptr; a = a->ai_next) {
      const int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
      if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) == 0) {
        freeaddrinfo(found);
        send_at_once(fd);
        return fd;
      }
      reason = std::strerror(errno);
      if (fd >= 0) close(fd);
    }
    if (failed == 0) freeaddrinfo(found);
    poll(nullptr, 0, 50);
  } while (seconds_since(begin) < seconds);
  throw DeviceError("nobody listens at " + host + ":" + std::to_string(port) + " (" + reason + ")", false);
}

std::string local_address(int fd) {
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);
  return getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0 ? text_of(address, length) : "";
}

std::string peer_address(int fd) {
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);
  return getpeername(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0 ? text_of(address, length) : "";
}

std::unique_ptr<Communicator> tcp_control(int rank, int world_size, const TcpListener* listener,
                                          const std::string& host, int port, double timeout_s) {
  if (rank != 0) {
    const int fd = tcp_connect(host, port, timeout_s);
    const auto number = static_cast<std::int32_t>(rank);
    if (send(fd, &number, sizeof(number), MSG_NOSIGNAL) != sizeof(number)) {
      close(fd);
      throw PeerDied({0}, "rank 0 has closed the connection of rank " + std::to_string(rank));
    }
    return std::make_unique<TcpControl>(rank, world_size, std::vector<int>{fd});
  }
  WM_CHECK(listener != nullptr, "rank 0 listens");
  std::vector<int> links(static_cast<std::size_t>(world_size), -1);
  const auto begin = Clock::now();
  int missing = world_size - 1;
  while (missing > 0) {
    const double left = timeout_s - seconds_since(begin);
    const int fd = left > 0 ? listener->accept(left) : -1;
    if (fd < 0 && left <= 0) {
      std::vector<int> late;
      for (int r = 1; r < world_size; ++r) {
        if (links[static_cast<std::size_t>(r)] < 0) late.push_back(r);
      }
      for (const int link : links) {
        if (link >= 0) close(link);
      }
      throw CollectiveTimeout(late, name_ranks(late) + " did not join the control group");
    }
    if (fd < 0) continue;
    std::int32_t number = -1;
    const bool told = recv(fd, &number, sizeof(number), MSG_WAITALL) == sizeof(number) && number > 0 &&
                      number < world_size && links[static_cast<std::size_t>(number)] < 0;
    if (!told) {
      close(fd);  // a stranger
      continue;
    }
    links[static_cast<std::size_t>(number)] = fd;
    --missing;
  }
  return std::make_unique<TcpControl>(rank, world_size, std::move(links));
}

}  // namespace warpmeter::collectives
