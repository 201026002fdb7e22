#include <cerrno>
#include <cstdlib>
#include <stdexcept>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "reports/snapshot/writer.hpp"
#include "reports/write_all.hpp"

namespace warpmeter::reports::snapshot {
namespace {

[[noreturn]] void fail(const std::string& path, int error) {
  throw std::runtime_error("cannot write '" + path + "': " + std::generic_category().message(error));
}

/// 0 or the errno. Closes `fd`.
int write_and_close(int fd, std::string_view contents) {
  int error = write_all(fd, contents);
  if (::close(fd) != 0 && error == 0) error = errno;  // some file systems report a full disk only here
  return error;
}

/// A symbolic link stays one: what it leads to is replaced.
std::string target_of(const std::string& path, bool exists) {
  if (!exists) return path;
  char* const real = ::realpath(path.c_str(), nullptr);
  if (real == nullptr) return path;
  std::string target = real;
  std::free(real);
  return target;
}

}  // namespace

std::string why_not_writable(const std::string& path) {
  struct stat status {};
  const bool exists = ::stat(path.c_str(), &status) == 0;
  int error = 0;
  if (exists && S_ISDIR(status.st_mode)) {
    error = EISDIR;
  } else if (exists && !S_ISREG(status.st_mode)) {
    if (::access(path.c_str(), W_OK) != 0) error = errno;  // opening a pipe would wait for its reader
  } else {
    std::string beside = target_of(path, exists) + ".XXXXXX";
    const int fd = ::mkostemp(beside.data(), O_CLOEXEC);
    if (fd < 0) {
      error = errno;
    } else {
      ::close(fd);
      ::unlink(beside.c_str());
    }
  }
  return error == 0 ? "" : std::generic_category().message(error);
}

void write_file(const std::string& path, std::string_view contents) {
  struct stat status {};
  const bool exists = ::stat(path.c_str(), &status) == 0;
  if (exists && !S_ISREG(status.st_mode)) {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (fd < 0) fail(path, errno);
    if (const int error = write_and_close(fd, contents); error != 0) fail(path, error);
    return;
  }
  const std::string target = target_of(path, exists);
  std::string beside = target + ".XXXXXX";
  const int fd = ::mkostemp(beside.data(), O_CLOEXEC);
  if (fd < 0) fail(path, errno);
  const mode_t mask = ::umask(0);
  ::umask(mask);
  int error = ::fchmod(fd, exists ? status.st_mode & 07777 : 0666 & ~mask) != 0 ? errno : 0;
  if (const int written = write_and_close(fd, contents); error == 0) error = written;
  if (error == 0 && ::rename(beside.c_str(), target.c_str()) != 0) error = errno;
  if (error != 0) {
    ::unlink(beside.c_str());
    fail(path, error);
  }
}

}  // namespace warpmeter::reports::snapshot
