#include "tools/harness/isolation.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/runtime/check.hpp"
#include "reports/reader.hpp"
#include "tools/harness/isolation_channel.hpp"
#include "tools/harness/sampler.hpp"
#include "tools/harness/sweep_outputs.hpp"
#include "tools/harness/usage_error.hpp"

namespace warpmeter::harness {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kPollSeconds = 0.1;
constexpr double kInterruptGraceSeconds = 3;  ///< for the child to hand over what it has

[[noreturn]] void throw_errno(const char* what) {
  throw DeviceError(fmt::format("{}: {}", what, std::strerror(errno)), false);
}

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() { reset(); }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  void reset() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  [[nodiscard]] int get() const { return fd_; }

 private:
  int fd_;
};

/// Kills that the system's out-of-memory killer has counted since boot; -1 where it is not told.
long long oom_kills() {
  std::ifstream vmstat("/proc/vmstat");
  std::string name;
  for (long long value = 0; vmstat >> name >> value;) {
    if (name == "oom_kill") return value;
  }
  return -1;
}

/// A running child in its own process group. Ends and reaps the whole group when it goes.
class Child {
 public:
  Child(const std::vector<std::string>& command, int parent_end, int child_end) {
    std::vector<std::string> arguments = command;
    arguments.insert(arguments.end(), {"--isolated-child-fd", std::to_string(child_end)});
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    const FileDescriptor null(open("/dev/null", O_RDWR | O_CLOEXEC));
    if (null.get() < 0) throw_errno("/dev/null cannot be opened");
    const pid_t parent = getpid();

    pid_ = fork();
    if (pid_ < 0) throw_errno("a child process cannot be started");
    if (pid_ == 0) {  // only async-signal-safe calls from here on: other threads may hold locks
      setpgid(0, 0);
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(127);  // the parent died before the line above
      signal(SIGPIPE, SIG_DFL);
      dup2(null.get(), STDIN_FILENO);
      dup2(null.get(), STDOUT_FILENO);
      close(parent_end);
      fcntl(child_end, F_SETFD, 0);
      execv(argv[0], argv.data());
      _exit(127);
    }
    setpgid(pid_, pid_);  // in both processes: whichever comes first
  }
  ~Child() {
    if (pid_ > 0) (void)end();
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  [[nodiscard]] bool exited() const {
    siginfo_t info = {};
    return waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid_;
  }
  void signal_group(int signal) const { kill(-pid_, signal); }
  /// Kills what is left of the group and returns the child's wait status. The child is reaped last: until then its
  /// number cannot name another group.
  int end() {
    signal_group(SIGKILL);
    return reap();
  }
  /// Waits for an end of its own accord first; then as end().
  int wait_then_end() {
    siginfo_t info = {};
    while (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
    }
    return end();
  }

 private:
  int reap() {
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return status;
  }
  pid_t pid_ = -1;
};

/// How the conversation with the child ended.
struct Conversation {
  std::optional<reports::Row> finished;
  std::optional<reports::Row> partial;
  std::optional<reports::Object> ceilings;
  bool timed_out = false;
  bool interrupted = false;
};

std::optional<reports::Row> read_row(const std::string& text, const std::vector<std::string>& row_keys) {
  try {
    return reports::row_from_json(text, row_keys);
  } catch (const reports::ReadError&) {
    return std::nullopt;
  }
}

void take(const Message& message, const IsolatedRun& run, Conversation& said) {
  switch (message.kind) {
    case MessageKind::row:
      said.finished = read_row(message.text, run.row_keys);
      break;
    case MessageKind::partial:
      said.partial = read_row(message.text, run.row_keys);
      break;
    case MessageKind::warning:
      if (run.on_warning) run.on_warning(message.text);
      break;
    case MessageKind::ceilings:
      said.ceilings = figures_from_json(message.text);
      break;
    case MessageKind::start:
      break;
  }
}

/// Listens until the child has closed its end or exited, time is up, or Ctrl-C came and the child had its grace.
Conversation converse(const IsolatedRun& run, const Child& child, int fd) {
  Conversation said;
  MessageReader reader;
  const Clock::time_point begin = Clock::now();
  std::optional<Clock::time_point> interrupted_at;
  const auto since = [](Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); };
  while (true) {
    const bool gone = child.exited();  // looked at before reading, so that its last words are not missed
    bool quiet = true;
    pollfd waiting = {fd, POLLIN, 0};
    double patience = gone ? 0 : kPollSeconds;
    if (run.timeout_s) patience = std::clamp(*run.timeout_s - since(begin), 0.0, patience);
    if (poll(&waiting, 1, static_cast<int>(patience * 1000) + (gone ? 0 : 1)) > 0) {
      char bytes[65536];
      const ssize_t n = ::read(fd, bytes, sizeof bytes);
      if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN)) return said;
      if (n > 0) {
        quiet = false;
        reader.feed({bytes, static_cast<std::size_t>(n)});
        while (const auto message = reader.next()) take(*message, run, said);
      }
    }
    if (gone && quiet) return said;  // a grandchild may still hold the socket: that is not waited for
    if (interrupt_requested() && !interrupted_at) {
      interrupted_at = Clock::now();
      said.interrupted = true;
      child.signal_group(interrupt_signal());
    }
    if (interrupted_at && since(*interrupted_at) > kInterruptGraceSeconds) return said;
    if (run.timeout_s && !interrupted_at && since(begin) >= *run.timeout_s) {
      said.timed_out = true;
      return said;
    }
  }
}

/// The same fields with the same values, in whatever order.
bool same_fields(const reports::Object& a, const reports::Object& b) {
  return a.fields().size() == b.fields().size() &&
         std::all_of(a.fields().begin(), a.fields().end(), [&](const auto& field) {
           const reports::Value* other = b.find(field.first);
           return other != nullptr && *other == field.second;
         });
}

/// Why a child that did not finish its row ended.
std::string describe_end(int status, long long oom_kills_before) {
  if (WIFEXITED(status)) return fmt::format("its process exited with status {}", WEXITSTATUS(status));
  const int signal = WTERMSIG(status);
  std::string text = fmt::format("its process was killed by {}", signal_text(signal));
  if (signal == SIGKILL) {
    const long long kills = oom_kills();
    if (kills >= 0 && kills > oom_kills_before) {
      text += ", by the system's out-of-memory killer";
    } else if (kills < 0) {
      text += ", likely by the system's out-of-memory killer";
    } else {
      text += ", from outside: the system counted no out-of-memory kill";
    }
  }
  return text;
}

}  // namespace

std::string signal_text(int signal) {
  switch (signal) {
    case SIGSEGV:
      return "SIGSEGV (segmentation fault)";
    case SIGABRT:
      return "SIGABRT (abort)";
    case SIGBUS:
      return "SIGBUS (bus error)";
    case SIGFPE:
      return "SIGFPE (arithmetic error)";
    case SIGILL:
      return "SIGILL (illegal instruction)";
    case SIGKILL:
      return "SIGKILL";
    case SIGTERM:
      return "SIGTERM";
    case SIGINT:
      return "SIGINT";
    case SIGPIPE:
      return "SIGPIPE";
    default:
      return fmt::format("signal {}", signal);
  }
}

IsolatedResult run_isolated(const IsolatedRun& run, const reports::Row& row) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) throw_errno("a socket pair cannot be made");
  FileDescriptor ours(ends[0]), theirs(ends[1]);

  const long long kills_before = oom_kills();
  Child child(run.command, ours.get(), theirs.get());
  theirs.reset();
  (void)write_all(ours.get(), encode({MessageKind::start, figures_to_json(run.ceilings)}));
  const Conversation said = converse(run, child, ours.get());

  IsolatedResult result;
  result.ceilings = said.ceilings.value_or(run.ceilings);
  // A process that has handed its row over may still take a while to leave; one that owes it has none left.
  const bool owes = !said.finished;
  const int status = owes && (said.timed_out || said.interrupted) ? child.end() : child.wait_then_end();
  if (said.finished) {
    result.row = *said.finished;
    if (!same_fields(result.row.configuration, row.configuration)) {
      result.row.figures = {};
      result.row.status = reports::Status::error;
      result.row.reason = "its rerun line gave another configuration in the isolated process";
    } else if (!WIFEXITED(status) && run.on_warning) {
      run.on_warning(
          fmt::format("an isolated process had reported its row, then {}", describe_end(status, kills_before)));
    }
  } else {
    if (said.partial) result.row.figures = said.partial->figures;
    if (said.interrupted) {
      result.row.status = reports::Status::interrupted;
      result.row.reason = interrupt_text();
    } else if (said.timed_out) {
      result.row.status = reports::Status::timeout;
      result.row.reason = fmt::format("not finished after {} s (--row-timeout)", *run.timeout_s);
    } else {
      result.row.status = reports::Status::crashed;
      result.row.reason = describe_end(status, kills_before);
    }
  }
  result.row.configuration = row.configuration;
  result.row.rerun = row.rerun;
  return result;
}

}  // namespace warpmeter::harness
