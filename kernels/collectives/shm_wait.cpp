#include "kernels/collectives/detail/shm_wait.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace warpmeter::collectives::detail {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kNoFd = -1;
constexpr int kNapMilliseconds = 20;
constexpr int kReasonMilliseconds = 200;  ///< for the starting process to say why a rank ended
// Some 200 us of spinning, longer than a sleeping process takes to wake (150 us on a virtual machine): a shorter spin
// lets one rank's sleep put the other to sleep too, and so on at every chunk (5 times as long at 10 and 100 MiB).
constexpr int kSpins = 8000;
constexpr int kCrowdedSpins = 20;
constexpr std::int64_t kChangeNanoseconds = 500'000;
constexpr int kCoreSpins = 64;  ///< between two looks at whether the other rank is on this core, and waits for it
// Only of ranks that share cores anyway: a yield gives a slice of milliseconds to whatever else wants the core, and
// ranks that yield to each other stay on one core, where a sleeper is woken on an idle one.
constexpr int kCrowdedYields = 5;

void pause_milliseconds(int milliseconds) {
  const timespec time = {0, milliseconds * 1000000L};
  nanosleep(&time, nullptr);
}

std::string seconds_text(double seconds) {
  std::string text = std::to_string(seconds);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text + " s";
}

}  // namespace

ShmWaiter::ShmWaiter(ShmSegment& segment, int rank)
    : segment_(segment), rank_(rank), pidfds_(static_cast<std::size_t>(segment.world_size())) {
  for (std::atomic<int>& fd : pidfds_) fd.store(kNoFd);
}

ShmWaiter::~ShmWaiter() {
  for (std::atomic<int>& fd : pidfds_) {
    if (fd.load() != kNoFd) close(fd.load());
  }
}

bool cores_are_taken(int own_threads) {
  const int file = open("/proc/loadavg", O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  std::array<char, 128> text = {};
  const ssize_t length = read(file, text.data(), text.size() - 1);
  close(file);
  int running = 0;
  if (length <= 0 || std::sscanf(text.data(), "%*s %*s %*s %d/", &running) != 1) return false;
  return running - own_threads >= sysconf(_SC_NPROCESSORS_ONLN);
}

bool ShmWaiter::look(SharedFlag& flag, SharedFlag& mine, std::uint32_t count) const {
  if (flag.reached(count)) return true;
  const int spins = segment_.crowded() ? kCrowdedSpins : kSpins;
  for (int i = 0; i < spins; ++i) {
    // Whoever shares this core can only come when it is free: away from it, or to sleep at once.
    if (i % kCoreSpins == 0 && flag.core.load(std::memory_order_relaxed) == current_core() && !change_core(mine)) {
      return false;
    }
    spin_pause();
    if (flag.reached(count)) return true;
  }
  for (int i = 0; segment_.crowded() && i < kCrowdedYields; ++i) {
    sched_yield();
    if (flag.reached(count)) return true;
    if (segment_.failed()) return false;
  }
  return false;
}

void ShmWaiter::note_core(SharedFlag& mine) const {
  const int core = current_core();
  mine.core.store(core, std::memory_order_relaxed);
  if (segment_.threads() > 1) return;  // the other flags are other threads'
  segment_.control(rank_).arrived.core.store(core, std::memory_order_relaxed);
  segment_.channel(0, rank_).written.core.store(core, std::memory_order_relaxed);
  segment_.channel(0, rank_).reduced.core.store(core, std::memory_order_relaxed);
}

bool ShmWaiter::change_core(SharedFlag& mine) const {
  if (segment_.crowded()) return false;
  // The scheduler may well bring two ranks that wake each other together again; not more often than it is worth.
  // Until then it spins on: a sleep at every chunk of a long array spreads from rank to rank.
  const std::int64_t now = Clock::now().time_since_epoch().count();
  std::int64_t last = changed_core_.load(std::memory_order_relaxed);
  if (now - last < kChangeNanoseconds || !changed_core_.compare_exchange_strong(last, now)) return moves_pay_.load();
  // Where other programs have the cores, a rank that moves at every chunk gets behind one of them for milliseconds and
  // is woken here again; one that sleeps hands the core over in microseconds. Beside two busy programs on two cores
  // staged arrays of 4 MiB take 0.6 ms so, and 20 to 100 ms otherwise. A direct call meets only twice: apart, half of
  // the calls run at full speed.
  moves_pay_.store(!chunks_ || !cores_are_taken(segment_.world_size() * segment_.threads()));
  if (!moves_pay_.load()) return false;
  cpu_set_t usable;
  if (sched_getaffinity(0, sizeof(usable), &usable) != 0) return false;
  cpu_set_t free = usable;
  for (int r = 0; r < segment_.world_size(); ++r) {
    const int core = segment_.control(r).arrived.core.load(std::memory_order_relaxed);
    if (core >= 0 && core < CPU_SETSIZE) CPU_CLR(static_cast<std::size_t>(core), &free);
  }
  CPU_CLR(static_cast<std::size_t>(std::max(current_core(), 0)), &free);
  if (CPU_COUNT(&free) == 0 || sched_setaffinity(0, sizeof(free), &free) != 0) return false;
  (void)sched_setaffinity(0, sizeof(usable), &usable);  // it stays where it is now until the scheduler thinks otherwise
  note_core(mine);
  return true;
}

void ShmWaiter::sleep(SharedFlag& flag, SharedFlag& mine, int owner, std::uint32_t count, const Collective& what,
                      const std::function<bool(int)>& reached) const {
  const auto deadline = Clock::now() + std::chrono::duration<double>(segment_.timeout_s());
  for (;;) {
    flag.sleep(count, kNapMilliseconds);
    note_core(mine);  // it may have woken on another
    if (flag.reached(count)) return;
    if (segment_.failed()) segment_.throw_failure();
    const auto state = static_cast<RankState>(segment_.control(owner).state.load(std::memory_order_acquire));
    if (state == RankState::left && !flag.reached(count)) {
      fail(CollectiveFault::peer_died, {owner},
           "rank " + std::to_string(owner) + " has left the group; rank " + std::to_string(rank_) +
               " waits for it in " + describe(what));
    }
    if (process_ended(owner) && !flag.reached(count)) {
      // The process that started the ranks knows more: a signal, the body's own words.
      for (int waited = 0; waited < kReasonMilliseconds && !segment_.failed(); waited += 10) pause_milliseconds(10);
      fail(CollectiveFault::peer_died, {owner},
           "rank " + std::to_string(owner) + " (process " + std::to_string(segment_.control(owner).pid.load()) +
               ") has died; rank " + std::to_string(rank_) + " waits for it in " + describe(what));
    }
    if (Clock::now() >= deadline) {
      std::vector<int> late;
      for (int r = 0; r < segment_.world_size(); ++r) {
        if (r != rank_ && !reached(r)) late.push_back(r);
      }
      if (late.empty()) continue;  // just come
      fail(CollectiveFault::timeout, late,
           "timeout: rank " + std::to_string(rank_) + " has waited " + seconds_text(segment_.timeout_s()) + " for " +
               name_ranks(late) + " in " + describe(what));
    }
  }
}

void ShmWaiter::fail(CollectiveFault fault, const std::vector<int>& ranks, const std::string& text) const {
  segment_.fail(fault, ranks, text);
  // Readable at once, or as soon as the rank that came first has written its own.
  for (int waited = 0; waited < 100 && !segment_.failed(); ++waited) pause_milliseconds(1);
  if (segment_.failed()) segment_.throw_failure();
  throw_collective_error(fault, ranks, text);  // it has died in the middle of writing
}

bool ShmWaiter::process_ended(int rank) const {
  const pid_t pid = segment_.control(rank).pid.load(std::memory_order_acquire);
  if (pid == 0) return false;  // not here yet: the time tells
#if defined(SYS_pidfd_open)
  std::atomic<int>& slot = pidfds_[static_cast<std::size_t>(rank)];
  if (slot.load() == kNoFd) {
    const int opened = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
    if (opened < 0 && errno == ESRCH) return true;
    int expected = kNoFd;
    if (opened >= 0 && !slot.compare_exchange_strong(expected, opened)) close(opened);  // another thread's came first
  }
  if (slot.load() != kNoFd) {
    pollfd ended = {slot.load(), POLLIN, 0};  // readable from the exit on, before anybody reaps it
    return poll(&ended, 1, 0) > 0;
  }
#endif
  return kill(pid, 0) != 0 && errno == ESRCH;
}

}  // namespace warpmeter::collectives::detail
