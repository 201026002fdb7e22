#include <atomic>
#include <csignal>

#include <unistd.h>

#include "tools/harness/sampler.hpp"

namespace warpmeter::harness {
namespace {

// A signal handler can reach nothing but a global; this is the only one.
std::atomic<int> requested{0};
static_assert(std::atomic<int>::is_always_lock_free);

void on_signal(int) {
  if (requested.exchange(1) != 0) _exit(130);  // asked twice: whatever hangs is not waited for
}

}  // namespace

void install_interrupt_handler() {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = 0;  // no SA_RESTART: a wait must return so that the flag is looked at
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool interrupt_requested() noexcept {
  return requested.load(std::memory_order_relaxed) != 0;
}

void throw_if_interrupted() {
  if (interrupt_requested()) throw Interrupted{};
}

}  // namespace warpmeter::harness
