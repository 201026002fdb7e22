#include "kernels/collectives/detail/shared_flag.hpp"

#include <climits>
#include <ctime>

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace warpmeter::collectives::detail {
namespace {

// Without FUTEX_PRIVATE_FLAG: the waiters are in other processes.
void futex(std::atomic<std::uint32_t>* word, int operation, std::uint32_t value, const timespec* timeout) noexcept {
  (void)syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(word), operation, value, timeout, nullptr, 0);
}

}  // namespace

int current_core() noexcept {
  return sched_getcpu();
}

void SharedFlag::publish(std::uint32_t count) noexcept {
  core.store(current_core(), std::memory_order_relaxed);
  // Sequentially consistent, as the sleeper's two steps are: either it sees the new value or it is seen here.
  value.store(count, std::memory_order_seq_cst);
  if (sleepers.load(std::memory_order_seq_cst) != 0) futex(&value, FUTEX_WAKE, INT_MAX, nullptr);
}

void SharedFlag::sleep(std::uint32_t count, int milliseconds) noexcept {
  sleepers.fetch_add(1, std::memory_order_seq_cst);
  const std::uint32_t seen = value.load(std::memory_order_seq_cst);
  if (static_cast<std::int32_t>(seen - count) < 0) {
    const timespec timeout = {milliseconds / 1000, static_cast<long>(milliseconds % 1000) * 1000000L};
    futex(&value, FUTEX_WAIT, seen, &timeout);
  }
  sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

}  // namespace warpmeter::collectives::detail
