#include "tools/harness/progress_console.hpp"

#include <cerrno>
#include <cstdlib>

#include <sys/ioctl.h>
#include <unistd.h>

#include "tools/harness/usage_error.hpp"

namespace warpmeter::harness {
namespace {

bool draws_in_place(int fd) {
  const char* term = std::getenv("TERM");
  return isatty(fd) == 1 && term != nullptr && std::string_view(term) != "dumb";
}

std::size_t terminal_width(int fd) {
  winsize size = {};
  return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

ProgressConsole::ProgressConsole(std::string program, int fd)
    : program_(std::move(program)), fd_(fd), terminal_(draws_in_place(fd)) {}

ProgressConsole::~ProgressConsole() {
  clear_status();
}

void ProgressConsole::write(std::string_view text) const {
  // stderr may be closed or full; there is nowhere left to say so.
  while (!text.empty()) {
    const ssize_t n = ::write(fd_, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(n));
  }
}

void ProgressConsole::line(std::string_view text) {
  const std::string status = status_;
  clear_status();
  write(program_ + ": " + one_line(text) + "\n");  // one write, so that other processes' lines do not mix in
  if (!status.empty()) show_status(status);
}

void ProgressConsole::warning(std::string_view text) {
  line("warning: " + std::string(text));
}

void ProgressConsole::show_status(std::string_view text) {
  if (!terminal_) return;
  const std::size_t width = terminal_width(fd_);
  status_ = one_line(text).substr(0, width > 1 ? width - 1 : 0);
  write("\r\x1b[K" + status_);
}

void ProgressConsole::clear_status() {
  if (status_.empty()) return;
  status_.clear();
  write("\r\x1b[K");
}

}  // namespace warpmeter::harness
