#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace warpmeter {

/// Threads that parallel loops use: the usable cores, lowered by OMP_NUM_THREADS, or what set_num_threads() says.
[[nodiscard]] int num_threads() noexcept;
void set_num_threads(int threads);

namespace detail {
using WorkerBody = void (*)(void* body, int worker, int workers);
void run_workers(int workers, WorkerBody body, void* context);
using IndexBody = void (*)(void* body, std::int64_t index, int worker);
void run_indices(std::int64_t count, IndexBody body, void* context);
}  // namespace detail

/// Calls body(worker, workers) once on each of num_threads() threads and waits for all. An exception in a worker is
/// rethrown in the caller. Nested calls run in the calling thread alone.
template <class Body>
void parallel_workers(Body&& body) {
  using Plain = std::remove_reference_t<Body>;
  detail::run_workers(
      num_threads(), [](void* context, int worker, int workers) { (*static_cast<Plain*>(context))(worker, workers); },
      const_cast<void*>(static_cast<const void*>(std::addressof(body))));
}

/// Calls body(index, worker) for every index in [0, count), dealt out dynamically in increasing order, and waits.
/// The result may not depend on which worker gets which index.
template <class Body>
void parallel_for(std::int64_t count, Body&& body) {
  using Plain = std::remove_reference_t<Body>;
  detail::run_indices(
      count, [](void* context, std::int64_t index, int worker) { (*static_cast<Plain*>(context))(index, worker); },
      const_cast<void*>(static_cast<const void*>(std::addressof(body))));
}

/// Calls body(index) for every index in [0, count): worker w of W takes the w-th of W even, contiguous parts. Two such
/// loops over the same rows find a row in the cache of the core that had it last; a dynamic one does not (on 16 cores
/// with a second-level cache each that is worth more than even loads).
template <class Body>
void parallel_for_static(std::int64_t count, Body&& body) {
  parallel_workers([&](int worker, int workers) {
    const std::int64_t end = count * (worker + 1) / workers;
    for (std::int64_t index = count * worker / workers; index < end; ++index) body(index);
  });
}

}  // namespace warpmeter
