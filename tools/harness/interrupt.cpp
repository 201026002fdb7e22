#include <atomic>
#include <csignal>

#include <unistd.h>

#include "tools/harness/sampler.hpp"

namespace warpmeter::harness {
namespace {

// A signal handler can reach nothing but globals; these are the only ones.
std::atomic<int> requested{0};  ///< the first signal
std::atomic<bool> insisted{false};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

void on_signal(int signal) {
  int none = 0;
  requested.compare_exchange_strong(none, signal);
  // A terminal that goes says so several times, and whoever ends its session a SIGTERM besides: nobody insists there.
  if (signal == SIGHUP) return;
  if (insisted.exchange(true)) _exit(130);  // asked twice: whatever hangs is not waited for
}

}  // namespace

void install_interrupt_handler() {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = 0;  // no SA_RESTART: a wait must return so that the flag is looked at
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  // Under nohup a terminal that goes is to be survived.
  struct sigaction before = {};
  if (sigaction(SIGHUP, nullptr, &before) == 0 && before.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
}

int interrupt_signal() noexcept {
  return requested.load(std::memory_order_relaxed);
}

std::string interrupt_text() {
  switch (interrupt_signal()) {
    case SIGTERM:
      return "SIGTERM";
    case SIGHUP:
      return "SIGHUP (its terminal is gone)";
    default:
      return "Ctrl-C";
  }
}

bool interrupt_requested() noexcept {
  return requested.load(std::memory_order_relaxed) != 0;
}

void throw_if_interrupted() {
  if (interrupt_requested()) throw Interrupted{};
}

}  // namespace warpmeter::harness
