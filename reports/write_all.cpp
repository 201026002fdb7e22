#include "reports/write_all.hpp"

#include <cerrno>

#include <poll.h>
#include <unistd.h>

namespace warpmeter::reports {

int write_all(int fd, std::string_view& rest) noexcept {
  while (!rest.empty()) {
    const ssize_t n = ::write(fd, rest.data(), rest.size());
    if (n >= 0) {
      rest.remove_prefix(static_cast<std::size_t>(n));
    } else if (errno == EAGAIN) {
      pollfd room = {fd, POLLOUT, 0};
      (void)::poll(&room, 1, -1);
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

}  // namespace warpmeter::reports
