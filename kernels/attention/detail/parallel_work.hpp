#pragma once

#include <cstdint>

#include "kernels/runtime/parallel.hpp"

namespace warpmeter::attention::detail {

constexpr double kWorthwhileNs = 20'000;  ///< work that takes longer is worth waking the other threads for

/// parallel_for(), but in the calling thread when all of it takes less time than waking the others is worth.
/// `index_ns` is a guess at one index's time.
template <class Body>
void parallel_for_work(std::int64_t count, double index_ns, Body&& body) {
  if (static_cast<double>(count) * index_ns < kWorthwhileNs) {
    for (std::int64_t index = 0; index < count; ++index) body(index, 0);
  } else {
    parallel_for(count, body);
  }
}

/// The same dealt out in even, contiguous parts: body(index).
template <class Body>
void parallel_for_static_work(std::int64_t count, double index_ns, Body&& body) {
  if (static_cast<double>(count) * index_ns < kWorthwhileNs) {
    for (std::int64_t index = 0; index < count; ++index) body(index);
  } else {
    parallel_for_static(count, body);
  }
}

}  // namespace warpmeter::attention::detail
