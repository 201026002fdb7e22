#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <random>
#include <stdexcept>

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/runtime/check.hpp"
#include "tools/harness/launch/ranks.hpp"
#include "tools/harness/sampler.hpp"

namespace warpmeter::harness::launch {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kSocketVariable = "WARPMETER_RANK_SOCKET";
constexpr const char* kRankVariable = "WARPMETER_RANK";
constexpr double kQuitSeconds = 5;
constexpr double kMpirunSeconds = 6;  ///< for mpirun to notice that its ranks are gone, and to tidy up

[[noreturn]] void refuse(const std::string& what) {
  throw DeviceError(what + ": " + std::strerror(errno), false);
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// An address without a file: nothing is left behind.
sockaddr_un address_of(const std::string& name, socklen_t& length) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::size_t bytes = std::min(name.size(), sizeof(address.sun_path) - 1);
  std::memcpy(address.sun_path + 1, name.data(), bytes);
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + bytes);
  return address;
}

std::string describe_end(int status) {
  if (WIFSIGNALED(status)) {
    const int number = WTERMSIG(status);
    const char* words = strsignal(number);
    return fmt::format("was killed by signal {} ({})", number, words != nullptr ? words : "unknown");
  }
  return fmt::format("exited with status {}", WEXITSTATUS(status));
}

std::string path_of_this_program() {
  std::string path(4096, '\0');
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size());
  if (length <= 0) refuse("the path of this program is not known");
  path.resize(static_cast<std::size_t>(length));
  return path;
}

bool is_open_mpi() {
  FILE* const pipe = popen("mpirun --version 2>/dev/null", "r");
  if (pipe == nullptr) return false;
  char line[256] = {};
  const bool open_mpi = std::fgets(line, sizeof(line), pipe) != nullptr && std::strstr(line, "Open MPI") != nullptr;
  while (std::fgets(line, sizeof(line), pipe) != nullptr) {
  }
  pclose(pipe);
  return open_mpi;
}

/// A file in memory for what a launcher says.
class Output {
 public:
  Output() : fd_(memfd_create("warpmeter-launcher", MFD_CLOEXEC)) {
    if (fd_ < 0) refuse("a file in memory cannot be made");
  }
  ~Output() { close(fd_); }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  [[nodiscard]] int fd() const { return fd_; }
  [[nodiscard]] std::string text() const {
    std::string all(65536, '\0');
    const ssize_t n = pread(fd_, all.data(), all.size(), 0);
    all.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
    return all;
  }

 private:
  int fd_;
};

class StartedRanks final : public Ranks {
 public:
  StartedRanks(int world_size, bool by_mpirun, const std::vector<std::string>& argv, double timeout_s);
  ~StartedRanks() override { end(); }

  [[nodiscard]] std::optional<std::string> ended(int rank) override;
  void kill() override { end(); }
  void quit() override;
  [[nodiscard]] bool reusable() const override { return false; }

 private:
  struct Child {
    pid_t pid = 0;
    std::optional<int> status;  ///< of one that has ended
  };

  void start(const std::vector<std::string>& command, int rank);
  void start_by_mpirun(int world_size, const std::vector<std::string>& argv);
  void listen();
  void accept_all(int world_size, double timeout_s);
  void look(Child& child, int flags);
  void end();
  /// What mpirun said about a rank that ended.
  [[nodiscard]] std::string last_words() const;

  std::string socket_name_;
  int listener_ = -1;
  std::vector<Child> children_;  ///< a rank's each; or mpirun alone
  bool by_mpirun_;
  Output output_;  ///< of mpirun
};

StartedRanks::StartedRanks(int world_size, bool by_mpirun, const std::vector<std::string>& argv, double timeout_s)
    : by_mpirun_(by_mpirun) {
  members_.resize(static_cast<std::size_t>(world_size));
  try {
    listen();
    if (by_mpirun) {
      start_by_mpirun(world_size, argv);
    } else {
      std::vector<std::string> command = argv;
      command.front() = "/proc/self/exe";
      for (int rank = 0; rank < world_size; ++rank) start(command, rank);
    }
    accept_all(world_size, timeout_s);
  } catch (...) {
    end();
    throw;
  }
  close(listener_);
  listener_ = -1;
  count_locals();
}

void StartedRanks::listen() {
  std::random_device random;
  socket_name_ = fmt::format("warpmeter-{}-{:08x}{:08x}", getpid(), random(), random());
  listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  socklen_t length = 0;
  const sockaddr_un address = address_of(socket_name_, length);
  if (listener_ < 0 || bind(listener_, reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      ::listen(listener_, 128) != 0) {
    refuse("no socket for the ranks");
  }
}

void StartedRanks::start(const std::vector<std::string>& command, int rank) {
  std::vector<std::string> words = command;
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  // Built before the fork: afterwards only async-signal-safe calls may be made.
  std::vector<std::string> settings{std::string(kSocketVariable) + "=" + socket_name_};
  if (rank >= 0) settings.push_back(std::string(kRankVariable) + "=" + std::to_string(rank));
  std::vector<char*> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
  for (std::string& setting : settings) environment.push_back(setting.data());
  environment.push_back(nullptr);
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (null < 0) refuse("/dev/null cannot be opened");
  const pid_t parent = getpid();
  std::fflush(nullptr);

  const pid_t pid = fork();
  if (pid == 0) {
    if (by_mpirun_) setpgid(0, 0);  // Ctrl-C is for this program to handle
    // mpirun shall still tidy up; its ranks end by themselves when their leader is gone.
    prctl(PR_SET_PDEATHSIG, by_mpirun_ ? SIGTERM : SIGKILL);
    if (getppid() != parent) _exit(127);
    signal(SIGINT, by_mpirun_ ? SIG_DFL : SIG_IGN);
    signal(SIGTERM, SIG_DFL);
    if (!by_mpirun_) signal(SIGHUP, SIG_IGN);  // so is a terminal that goes
    dup2(null, STDIN_FILENO);
    dup2(by_mpirun_ ? output_.fd() : null, STDOUT_FILENO);
    if (by_mpirun_) dup2(output_.fd(), STDERR_FILENO);
    execvpe(arguments[0], arguments.data(), environment.data());
    _exit(127);
  }
  const int error = errno;
  close(null);
  errno = error;
  if (pid < 0) refuse("a rank cannot be started");
  children_.push_back({pid, std::nullopt});
}

void StartedRanks::start_by_mpirun(int world_size, const std::vector<std::string>& argv) {
  std::vector<std::string> command{"mpirun", "-np", std::to_string(world_size)};
  if (is_open_mpi()) {
    if (geteuid() == 0) command.emplace_back("--allow-run-as-root");
    command.emplace_back("--oversubscribe");
    // What it leaves in memory and in /tmp while it runs is its own; it shall talk over nothing but this host.
    command.insert(command.end(), {"--mca", "btl", "self,vader"});
  }
  command.push_back(path_of_this_program());
  command.insert(command.end(), argv.begin() + 1, argv.end());
  start(command, -1);
}

void StartedRanks::accept_all(int world_size, double timeout_s) {
  const auto begin = Clock::now();
  std::vector<Link> strangers;  // connected, not yet introduced
  int come = 0;
  const auto take = [&](Link& link) {
    const auto message = link.next();
    if (!message) return false;
    const Hello hello = parse_hello(message->text);
    WM_CHECK(hello.rank >= 0 && hello.rank < world_size, "rank " + std::to_string(hello.rank));
    Member& member = members_[static_cast<std::size_t>(hello.rank)];
    WM_CHECK(!member.link.open(), "two processes are rank " + std::to_string(hello.rank));
    member.link = std::move(link);
    member.pid = hello.pid;
    member.host = hello.host;
    member.boot = hello.boot;
    ++come;
    return true;
  };
  while (come < world_size) {
    throw_if_interrupted();
    std::vector<pollfd> ready{{listener_, POLLIN, 0}};
    for (const Link& link : strangers) ready.push_back({link.fd(), POLLIN, 0});
    if (poll(ready.data(), ready.size(), 20) > 0) {
      if ((ready[0].revents & POLLIN) != 0) {
        const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
        if (fd >= 0) strangers.emplace_back(fd);
      }
      for (auto link = strangers.begin(); link != strangers.end();) {
        const bool open = link->pump();
        link = take(*link) || !open ? strangers.erase(link) : link + 1;
      }
    }
    for (Child& child : children_) {
      look(child, WNOHANG);
      if (child.status && come < world_size) {
        const std::string words = last_words();
        const std::string who = by_mpirun_ ? "mpirun" : fmt::format("rank {}", &child - children_.data());
        throw DeviceError(fmt::format("{} {} before the ranks were there{}", who, describe_end(*child.status),
                                      words.empty() ? "" : ": " + words),
                          false);
      }
    }
    if (seconds_since(begin) > timeout_s) {
      throw DeviceError(fmt::format("{} of {} ranks have started within {:g} s", come, world_size, timeout_s), false);
    }
  }
}

void StartedRanks::look(Child& child, int flags) {
  if (child.status || child.pid <= 0) return;
  int status = 0;
  pid_t got = 0;
  while ((got = waitpid(child.pid, &status, flags)) < 0 && errno == EINTR) {
  }
  if (got != 0) child.status = got < 0 ? W_EXITCODE(1, 0) : status;
}

std::optional<std::string> StartedRanks::ended(int rank) {
  if (!by_mpirun_) {
    Child& child = children_[static_cast<std::size_t>(rank)];
    look(child, WNOHANG);
    return child.status ? std::optional(describe_end(*child.status)) : std::nullopt;
  }
  if (::kill(members_[static_cast<std::size_t>(rank)].pid, 0) == 0) return std::nullopt;
  // How it ended only its parent knows: "process rank 1 with PID 0 on node x exited on signal 9 (Killed)".
  const std::string words = output_.text();
  const std::string who = "process rank " + std::to_string(rank) + " ";
  const std::size_t at = words.find(who);
  const std::size_t how = at == std::string::npos ? at : words.find("exited on signal", at);
  if (how == std::string::npos) return std::nullopt;
  return "was killed by" + words.substr(how + 9, words.find_first_of(".\n", how) - how - 9);
}

std::string StartedRanks::last_words() const {
  if (!by_mpirun_) return "";
  std::string text = output_.text();
  // Its frames of dashes say nothing.
  std::string words;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    if (!line.empty() && line.find_first_not_of("-= ") != std::string::npos) words += (words.empty() ? "" : " ") + line;
    begin = end + 1;
  }
  return words.substr(0, 400);
}

void StartedRanks::quit() {
  tell_to_quit();
  const auto begin = Clock::now();
  const auto left = [this] {
    for (Child& child : children_) look(child, WNOHANG);
    return std::any_of(children_.begin(), children_.end(), [](const Child& child) { return !child.status; });
  };
  while (left() && seconds_since(begin) < kQuitSeconds) usleep(1000);
  end();
}

void StartedRanks::end() {
  if (listener_ >= 0) close(listener_);
  listener_ = -1;
  for (const Member& member : members_) {
    // mpirun's ranks are not this process's children: a number may have gone to another, unless the link still stands.
    if (by_mpirun_ && member.pid > 0 && member.link.open()) ::kill(member.pid, SIGKILL);
  }
  if (by_mpirun_) {
    const auto begin = Clock::now();
    bool asked = false;
    for (Child& child : children_) {
      for (look(child, WNOHANG); !child.status; look(child, WNOHANG)) {
        if (!asked && (members_.empty() || seconds_since(begin) > kMpirunSeconds / 2)) {
          asked = true;
          ::kill(child.pid, SIGTERM);
        }
        if (seconds_since(begin) > kMpirunSeconds) break;
        usleep(2000);
      }
    }
  }
  for (Child& child : children_) {
    if (!child.status && child.pid > 0) ::kill(child.pid, SIGKILL);
  }
  for (Child& child : children_) look(child, 0);
  for (Member& member : members_) member.link.close();
}

}  // namespace

std::unique_ptr<Ranks> start_ranks(int world_size, bool by_mpirun, const std::vector<std::string>& argv,
                                   double timeout_s) {
  return std::make_unique<StartedRanks>(world_size, by_mpirun, argv, timeout_s);
}

std::optional<Link> link_of_started_rank() {
  const char* const name = std::getenv(kSocketVariable);
  if (name == nullptr) return std::nullopt;
  int rank = -1;
  for (const char* variable : {kRankVariable, "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"}) {
    const char* const text = std::getenv(variable);
    if (text != nullptr && rank < 0) rank = std::atoi(text);
  }
  if (rank < 0) throw std::runtime_error("mpirun has told a rank no number");
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  socklen_t length = 0;
  const sockaddr_un address = address_of(name, length);
  if (fd < 0 || connect(fd, reinterpret_cast<const sockaddr*>(&address), length) != 0) refuse("no way to the leader");
  unsetenv(kSocketVariable);
  Link link(fd);
  link.send(Say::hello, hello_text(rank));
  return link;
}

}  // namespace warpmeter::harness::launch
