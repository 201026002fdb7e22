#include "kernels/runtime/parallel.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>

#include <omp.h>

#include "kernels/runtime/check.hpp"
#include "kernels/runtime/detail/host_info.hpp"

#ifdef WARPMETER_TSAN
#include <sanitizer/tsan_interface.h>
#endif

namespace warpmeter {
namespace {

thread_local bool inside_region = false;

/// Marks the calling thread as inside a parallel region, and restores what was.
class InsideRegion {
 public:
  InsideRegion() : previous_(inside_region) { inside_region = true; }
  ~InsideRegion() { inside_region = previous_; }
  InsideRegion(const InsideRegion&) = delete;
  InsideRegion& operator=(const InsideRegion&) = delete;

 private:
  bool previous_;
};

std::atomic<int>& wanted_threads() {
  static std::atomic<int> threads{std::max(1, std::min(detail::usable_cores(), omp_get_max_threads()))};
  return threads;
}

/// One parallel region. ThreadSanitizer does not see libgomp's own synchronization, so the two edges that it makes are
/// told to it: everything before the fork happens before the workers, the workers before what follows the join.
class Region {
 public:
  Region(detail::WorkerBody body, void* context) : body_(body), context_(context) {}

  void fork() {
#ifdef WARPMETER_TSAN
    __tsan_release(&fork_);
#endif
  }
  void work(int worker, int workers) noexcept {
#ifdef WARPMETER_TSAN
    __tsan_acquire(&fork_);
#endif
    try {
      const InsideRegion inside;
      body_(context_, worker, workers);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
#ifdef WARPMETER_TSAN
    __tsan_release(&join_);
#endif
  }
  void join() {
#ifdef WARPMETER_TSAN
    __tsan_acquire(&join_);
#endif
    if (error_) std::rethrow_exception(error_);
  }

 private:
  detail::WorkerBody body_;
  void* context_;
  std::mutex mutex_;
  std::exception_ptr error_;
#ifdef WARPMETER_TSAN
  char fork_ = 0;
  char join_ = 0;
#endif
};

/// The region's outlined function reads the caller's stack before work() tells ThreadSanitizer of the fork: it is not
/// instrumented, only what it calls is.
#ifdef WARPMETER_TSAN
__attribute__((no_sanitize("thread")))
#endif
void run_region(Region* region, int workers) {
#pragma omp parallel num_threads(workers) default(none) shared(region)
  region->work(omp_get_thread_num(), omp_get_num_threads());
}

void run(int workers, detail::WorkerBody body, void* context) {
  if (workers <= 1 || inside_region || omp_in_parallel() != 0) {
    const InsideRegion inside;
    body(context, 0, 1);
    return;
  }
  Region region(body, context);
  region.fork();
  run_region(&region, workers);
  region.join();
}

struct IndexLoop {
  std::int64_t count;
  detail::IndexBody body;
  void* context;
  std::atomic<std::int64_t> next{0};
};

void deal_indices(void* context, int worker, int /*workers*/) {
  auto& loop = *static_cast<IndexLoop*>(context);
  try {
    for (;;) {
      const std::int64_t index = loop.next.fetch_add(1, std::memory_order_relaxed);
      if (index >= loop.count) return;
      loop.body(loop.context, index, worker);
    }
  } catch (...) {
    loop.next.store(loop.count, std::memory_order_relaxed);  // nobody starts another index
    throw;
  }
}

}  // namespace

int num_threads() noexcept {
  return wanted_threads().load(std::memory_order_relaxed);
}

void set_num_threads(int threads) {
  WM_CHECK(threads >= 1, "threads " + std::to_string(threads));
  wanted_threads().store(threads, std::memory_order_relaxed);
}

namespace detail {

void run_workers(int workers, WorkerBody body, void* context) {
  run(workers, body, context);
}

void run_indices(std::int64_t count, IndexBody body, void* context) {
  if (count <= 0) return;
  IndexLoop loop{count, body, context};
  run(static_cast<int>(std::min<std::int64_t>(count, num_threads())), deal_indices, &loop);
}

}  // namespace detail
}  // namespace warpmeter
