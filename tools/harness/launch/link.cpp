#include "tools/harness/launch/link.hpp"

#include <cerrno>
#include <chrono>
#include <utility>

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tools/harness/usage_error.hpp"

namespace warpmeter::harness::launch {

Link::Link(int fd) : fd_(fd), sending_(std::make_unique<std::mutex>()) {}
Link::~Link() {
  close();
}
Link::Link(Link&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), pending_(std::move(other.pending_)), sending_(std::move(other.sending_)) {}
Link& Link::operator=(Link&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = std::exchange(other.fd_, -1);
    pending_ = std::move(other.pending_);
    sending_ = std::move(other.sending_);
  }
  return *this;
}

void Link::close() noexcept {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

bool Link::send(Say say, std::string_view text) {
  if (fd_ < 0) return false;
  std::string line(1, static_cast<char>(say));
  line += one_line(text);
  line += '\n';
  const std::lock_guard lock(*sending_);
  std::string_view rest = line;
  while (!rest.empty()) {
    const ssize_t n = ::send(fd_, rest.data(), rest.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    rest.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

bool Link::pump() {
  if (fd_ < 0) return false;
  for (;;) {
    char bytes[16384];
    const ssize_t n = recv(fd_, bytes, sizeof(bytes), MSG_DONTWAIT);
    if (n > 0) {
      pending_.append(bytes, static_cast<std::size_t>(n));
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  }
}

std::optional<Message> Link::next() {
  const std::size_t end = pending_.find('\n');
  if (end == std::string::npos) return std::nullopt;
  Message message{static_cast<Say>(end > 0 ? pending_[0] : ' '), pending_.substr(1, end > 0 ? end - 1 : 0)};
  pending_.erase(0, end + 1);
  return message;
}

std::optional<Message> Link::receive(double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::duration<double>(seconds);
  for (;;) {
    if (auto message = next()) return message;
    const double left = std::chrono::duration<double>(deadline - Clock::now()).count();
    if (left <= 0 || fd_ < 0) return std::nullopt;
    pollfd ready = {fd_, POLLIN, 0};
    if (poll(&ready, 1, static_cast<int>(left * 1000) + 1) <= 0) continue;
    if (!pump()) return next();
  }
}

}  // namespace warpmeter::harness::launch
