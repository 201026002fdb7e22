#include "kernels/collectives/launch.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <optional>

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kernels/runtime/check.hpp"

namespace warpmeter::collectives {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kBodyFailed = 1;
constexpr int kPeerFailed = 3;  ///< the rank came down with another one

/// What the ranks' bodies threw, written by them and read by the parent: one page a rank.
class ReasonBoard {
 public:
  explicit ReasonBoard(int ranks) : bytes_(static_cast<std::size_t>(ranks) * kPage) {
    void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw DeviceError(std::string("shared memory: ") + std::strerror(errno), false);
    data_ = static_cast<char*>(memory);
  }
  ~ReasonBoard() { munmap(data_, bytes_); }
  ReasonBoard(const ReasonBoard&) = delete;
  ReasonBoard& operator=(const ReasonBoard&) = delete;

  void write(int rank, const std::string& text) const {
    std::memcpy(line(rank), text.data(), std::min(text.size(), kPage - 1));  // the page is zero behind it
  }
  [[nodiscard]] std::string read(int rank) const { return {line(rank), strnlen(line(rank), kPage - 1)}; }

 private:
  static constexpr std::size_t kPage = 4096;
  [[nodiscard]] char* line(int rank) const { return data_ + static_cast<std::size_t>(rank) * kPage; }

  std::size_t bytes_;
  char* data_ = nullptr;
};

/// The rank's whole life. Never returns: the caller's stack belongs to the parent.
[[noreturn]] void be_rank(int rank, const ShmWorld& world, const ReasonBoard& reasons,
                          const std::function<void(Communicator&)>& body) noexcept {
  int code = 0;
  // The communicator outlives the handlers: peers must hear the reason before they see that the rank has left.
  std::unique_ptr<Communicator> communicator;
  const auto failed = [&](const char* what) {
    reasons.write(rank, what);
    world.report_failure(rank, what);
    code = kBodyFailed;
  };
  try {
    communicator = world.join(rank);
    body(*communicator);
  } catch (const CollectiveError& error) {
    reasons.write(rank, error.what());
    // Its own failure, unless it only tells of another rank's.
    const bool own = error.ranks().size() == 1 && error.ranks().front() == rank;
    if (own) world.report_failure(rank, error.what());
    code = own ? kBodyFailed : kPeerFailed;
  } catch (const std::exception& error) {
    failed(error.what());
  } catch (...) {
    failed("an exception of unknown type");
  }
  communicator.reset();
  std::cout.flush();
  std::cerr.flush();
  std::fflush(nullptr);
  _exit(code);
}

std::string signal_reason(int number) {
  const char* words = strsignal(number);
  return "killed by signal " + std::to_string(number) + " (" + (words != nullptr ? words : "unknown") + ")";
}

/// The running ranks. Kills and reaps those that are left when it goes.
class Ranks {
 public:
  explicit Ranks(int count) : pids_(static_cast<std::size_t>(count), 0) {}
  ~Ranks() {
    kill_all();
    for (pid_t& pid : pids_) {
      if (pid > 0) (void)reap(pid, 0);
    }
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  [[nodiscard]] pid_t& pid(int rank) { return pids_[static_cast<std::size_t>(rank)]; }
  void kill_all() const {
    for (const pid_t pid : pids_) {
      if (pid > 0) kill(pid, SIGKILL);
    }
  }
  [[nodiscard]] bool any() const {
    return std::any_of(pids_.begin(), pids_.end(), [](pid_t pid) { return pid > 0; });
  }
  /// A rank's wait status once it has ended.
  std::optional<int> ended(int rank) { return pid(rank) > 0 ? reap(pid(rank), WNOHANG) : std::nullopt; }

 private:
  static std::optional<int> reap(pid_t& pid, int flags) {
    int status = 0;
    pid_t got = 0;
    while ((got = waitpid(pid, &status, flags)) < 0 && errno == EINTR) {
    }
    if (got == 0) return std::nullopt;
    // An error: someone else has reaped it (SIGCHLD is ignored), and how it ended is lost.
    if (got < 0) status = W_EXITCODE(kBodyFailed, 0);
    pid = 0;
    return status;
  }
  std::vector<pid_t> pids_;
};

RankExit exit_of(int status, const std::string& words) {
  RankExit exit;
  if (WIFSIGNALED(status)) {
    exit.signal = WTERMSIG(status);
    exit.reason = signal_reason(exit.signal);
  } else {
    exit.exit_code = WEXITSTATUS(status);
    if (exit.exit_code != 0) exit.reason = "exit status " + std::to_string(exit.exit_code);
  }
  if (!words.empty() && exit.exit_code != 0) exit.reason = words;
  return exit;
}

}  // namespace

LaunchReport launch_ranks(const LaunchOptions& options, const std::function<void(Communicator&)>& body) {
  const ShmWorld world(options.shm);
  const int count = world.world_size();
  const ReasonBoard reasons(count);
  std::cout.flush();
  std::fflush(nullptr);  // or the children would write it again

  Ranks ranks(count);
  const pid_t parent = getpid();
  for (int rank = 0; rank < count; ++rank) {
    const pid_t pid = fork();
    if (pid < 0) throw DeviceError(std::string("a rank cannot be started: ") + std::strerror(errno), false);
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(kBodyFailed);  // it died before the line above
      be_rank(rank, world, reasons, body);
    }
    ranks.pid(rank) = pid;
  }

  LaunchReport report;
  report.ranks.resize(static_cast<std::size_t>(count));
  const auto blame = [&](int rank, const std::string& reason) {
    report.first_failed = rank;
    report.reason = "rank " + std::to_string(rank) + ": " + reason;
  };
  const auto begin = Clock::now();
  const auto since = [](Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); };
  std::optional<Clock::time_point> failed_at;
  int follower = -1;  // a rank that came down with another: to blame only when nobody else is
  bool killed = false;
  int nap_us = 100;
  while (ranks.any()) {
    bool quiet = true;
    for (int rank = 0; rank < count; ++rank) {
      const std::optional<int> status = ranks.ended(rank);
      if (!status) continue;
      quiet = false;
      RankExit& exit = report.ranks[static_cast<std::size_t>(rank)];
      exit = exit_of(*status, reasons.read(rank));
      if (exit.reason.empty()) continue;
      if (!failed_at) failed_at = Clock::now();
      if (killed && exit.signal == SIGKILL) {
        exit.reason = report.timed_out ? "not done in time, killed" : "killed after another rank's failure";
        continue;
      }
      if (exit.signal == 0 && exit.exit_code == kPeerFailed) {
        if (follower < 0) follower = rank;
        continue;
      }
      world.report_failure(rank, exit.reason);  // the first words stay: a body's own are there already
      if (report.first_failed < 0) blame(rank, exit.reason);
    }
    if (!killed && failed_at && since(*failed_at) > options.grace_s) {
      killed = true;
      ranks.kill_all();
    }
    if (!killed && options.timeout_s > 0 && since(begin) > options.timeout_s) {
      killed = true;
      report.timed_out = true;
      for (int rank = 0; rank < count; ++rank) {
        if (ranks.pid(rank) <= 0 || report.first_failed >= 0) continue;
        const std::string activity = world.activity(rank);
        blame(rank, "not done in time" + (activity.empty() ? "" : ", in " + activity));
      }
      ranks.kill_all();
    }
    nap_us = quiet ? std::min(2 * nap_us, 5000) : 100;
    const timespec nap = {0, nap_us * 1000L};
    if (ranks.any()) nanosleep(&nap, nullptr);
  }
  if (report.first_failed < 0 && follower >= 0) {
    blame(follower, report.ranks[static_cast<std::size_t>(follower)].reason);
  }
  return report;
}

}  // namespace warpmeter::collectives
