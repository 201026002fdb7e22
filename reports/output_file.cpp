#include "reports/output_file.hpp"

#include <cerrno>
#include <filesystem>
#include <random>
#include <sstream>
#include <stdexcept>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "reports/write_all.hpp"

namespace warpmeter::reports {
namespace {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool valid() const { return fd_ >= 0; }
  /// Closes and says whether it worked: some file systems report a full disk only here.
  [[nodiscard]] bool close() { return ::close(std::exchange(fd_, -1)) == 0; }

 private:
  int fd_ = -1;
};

[[noreturn]] void fail(const std::string& path, const std::string& why) {
  throw std::runtime_error("cannot write '" + path + "': " + why);
}
[[noreturn]] void fail(const std::string& path, int error) {
  fail(path, std::generic_category().message(error));
}

/// Holds SIGPIPE back from this thread, so that a reader who leaves is an error (EPIPE) and not the end of the process.
class NoSigpipe {
 public:
  NoSigpipe() {
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    sigemptyset(&set_);
    sigaddset(&set_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &set_, &before_);
  }
  ~NoSigpipe() {
    if (!was_pending_) {
      const timespec now{};
      while (sigtimedwait(&set_, nullptr, &now) < 0 && errno == EINTR) {
      }
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;

 private:
  sigset_t set_{};
  sigset_t before_{};
  bool was_pending_ = false;
};

/// write_all, but a reader who leaves is an error and no signal.
int write_guarded(int fd, std::string_view& rest) {
  const NoSigpipe guard;
  return write_all(fd, rest);
}

/// Where the links of `path` end, as an absolute path; what is there need not exist.
std::string follow_links(const std::string& path) {
  std::error_code error;
  std::filesystem::path at = std::filesystem::absolute(path, error);
  if (error) fail(path, error.value());
  for (int links = 0; std::filesystem::is_symlink(std::filesystem::symlink_status(at, error)); ++links) {
    if (links >= 40) fail(path, ELOOP);
    const std::filesystem::path target = std::filesystem::read_symlink(at, error);
    if (error) fail(path, error.value());
    at = target.is_absolute() ? target : at.parent_path() / target;
  }
  return at.string();
}

bool below_dev_or_proc(const std::string& path) {
  std::error_code error;
  const std::string plain = std::filesystem::absolute(path, error).lexically_normal().string();
  return plain.starts_with("/dev/") || plain.starts_with("/proc/");
}

/// A new file beside `target` that nobody else has; `name` is its path. Invalid with errno set when there can be none.
FileDescriptor create_beside(const std::string& target, std::string& name) {
  const std::filesystem::path path(target);
  std::random_device random;
  for (int attempt = 0; attempt < 100; ++attempt) {
    // Cut, so that the longest name that a folder takes still has room for the rest.
    std::string file_name(1, '.');
    file_name.append(path.filename().string(), 0, 200).append(1, '.').append(std::to_string(random())).append(".tmp");
    name = (path.parent_path() / file_name).string();
    FileDescriptor file(::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (file.valid() || errno != EEXIST) return file;
  }
  errno = EEXIST;
  return {};
}

void sync_folder(const std::string& target) {
  const FileDescriptor folder(
      ::open(std::filesystem::path(target).parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Best effort: the data is on the disk; only the new name may be lost with the power.
  if (folder.valid()) (void)::fsync(folder.get());
}

}  // namespace

struct OutputFile::Impl {
  std::string path;    // as given
  std::string target;  // where the links end
  WriterOptions options;
  Format format = Format::jsonl;
  bool in_place = false;  // the folder takes no second file

  // Streams only.
  FileDescriptor stream;
  std::unique_ptr<Writer> writer;
  bool begun = false;
  std::size_t rows_written = 0;
  bool finished = false;
  std::string unsent;

  void open_stream();
  void open_file(bool exists);
  void replace(std::string_view text);
  void replace_in_place(std::string_view text);
  void append(const Document& document, bool last);
};

void OutputFile::Impl::open_stream() {
  // Not blocking: a pipe that nobody reads is told at once instead of waiting for a reader for ever. Appending: a
  // regular file behind /dev/stdout has other writers.
  stream = FileDescriptor(::open(path.c_str(), O_WRONLY | O_APPEND | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!stream.valid()) {
    if (errno == ENXIO) fail(path, "nobody reads this pipe");
    fail(path, errno);
  }
  const int flags = ::fcntl(stream.get(), F_GETFL);
  if (flags < 0 || ::fcntl(stream.get(), F_SETFL, flags & ~O_NONBLOCK) < 0) fail(path, errno);
  writer = make_writer(format, options);
}

void OutputFile::Impl::open_file(bool exists) {
  if (exists) {
    const FileDescriptor file(::open(target.c_str(), O_WRONLY | O_CLOEXEC));
    if (!file.valid()) fail(path, errno);
  }
  std::string beside;
  const FileDescriptor file = create_beside(target, beside);
  if (file.valid()) {
    ::unlink(beside.c_str());
  } else if (exists) {
    in_place = true;
  } else {
    fail(path, errno);
  }
}

void OutputFile::Impl::replace(std::string_view text) {
  if (in_place) return replace_in_place(text);
  std::string beside;
  FileDescriptor file = create_beside(target, beside);
  if (!file.valid()) fail(path, errno);
  struct stat old {};
  if (::stat(target.c_str(), &old) == 0) {
    // Another owner may be refused; the mode comes after it, for changing the owner drops set-id bits.
    if (::fchown(file.get(), old.st_uid, old.st_gid) != 0) errno = 0;
    if (::fchmod(file.get(), old.st_mode & 07777) != 0) errno = 0;
  }
  std::string_view rest = text;
  int error = write_guarded(file.get(), rest);
  if (error == 0 && ::fsync(file.get()) != 0 && errno != EINVAL) error = errno;
  if (!file.close() && error == 0) error = errno;
  if (error == 0 && ::rename(beside.c_str(), target.c_str()) != 0) error = errno;
  if (error != 0) ::unlink(beside.c_str());
  if (error == EBUSY || error == EXDEV) {  // a file that is mounted itself, as containers do
    in_place = true;
    return replace_in_place(text);
  }
  if (error != 0) fail(path, error);
  sync_folder(target);
}

void OutputFile::Impl::replace_in_place(std::string_view text) {
  FileDescriptor file(::open(target.c_str(), O_WRONLY | O_CLOEXEC));
  if (!file.valid()) fail(path, errno);
  // Truncated last: until then a failure leaves a long file, not an empty one.
  std::string_view rest = text;
  int error = write_guarded(file.get(), rest);
  if (error == 0 && ::ftruncate(file.get(), static_cast<off_t>(text.size())) != 0) error = errno;
  if (error == 0 && ::fsync(file.get()) != 0 && errno != EINVAL) error = errno;
  if (!file.close() && error == 0) error = errno;
  if (error != 0) fail(path, error);
}

void OutputFile::Impl::append(const Document& document, bool last) {
  if (!finished) {
    std::ostringstream text;
    if (!begun) writer->begin(document, text);
    begun = true;
    for (; rows_written < document.rows.size(); ++rows_written) {
      writer->row(document, document.rows[rows_written], text);
    }
    if (last) writer->end(document, text);
    finished = last;
    unsent += text.str();
  }
  // What a full device did not take is tried again with the next row, so that the stream has no hole.
  std::string_view rest = unsent;
  const int error = write_guarded(stream.get(), rest);
  unsent.erase(0, unsent.size() - rest.size());
  if (error != 0) fail(path, error);
}

OutputFile::OutputFile(std::string path, WriterOptions options) : impl_(std::make_unique<Impl>()) {
  impl_->path = std::move(path);
  impl_->options = std::move(options);
  const std::optional<Format> format = format_of_path(impl_->path);
  struct stat info {};
  const bool exists = ::stat(impl_->path.c_str(), &info) == 0;
  if (!exists && errno != ENOENT) fail(impl_->path, errno);
  impl_->target = follow_links(impl_->path);
  if (exists && S_ISDIR(info.st_mode)) fail(impl_->path, EISDIR);
  const bool is_stream =
      below_dev_or_proc(impl_->path) || below_dev_or_proc(impl_->target) || (exists && !S_ISREG(info.st_mode));
  if (!format && !is_stream) fail(impl_->path, "the name must end in .md, .json, .jsonl or .csv");
  impl_->format = format.value_or(Format::jsonl);
  if (is_stream) {
    impl_->open_stream();
  } else {
    impl_->open_file(exists);
  }
}

OutputFile::~OutputFile() = default;
OutputFile::OutputFile(OutputFile&&) noexcept = default;
OutputFile& OutputFile::operator=(OutputFile&&) noexcept = default;

void OutputFile::rewrite(const Document& document) {
  if (impl_->stream.valid()) return impl_->append(document, false);
  std::ostringstream text;
  write_document(document, impl_->format, impl_->options, text);
  impl_->replace(text.str());
}

void OutputFile::finish(const Document& document) {
  if (impl_->stream.valid()) return impl_->append(document, true);
  rewrite(document);
}

const std::string& OutputFile::path() const noexcept {
  return impl_->path;
}
Format OutputFile::format() const noexcept {
  return impl_->format;
}

}  // namespace warpmeter::reports
