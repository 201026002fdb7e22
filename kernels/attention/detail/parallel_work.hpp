#pragma once

#include <cstdint>

#include "kernels/runtime/parallel.hpp"

namespace warpmeter::attention::detail {

/// parallel_for(), but in the calling thread when all of it takes less time than waking the others is worth.
/// `index_ns` is a guess at one index's time.
template <class Body>
void parallel_for_work(std::int64_t count, double index_ns, Body&& body) {
  constexpr double kWorthwhileNs = 20'000;
  if (static_cast<double>(count) * index_ns < kWorthwhileNs) {
    for (std::int64_t index = 0; index < count; ++index) body(index, 0);
  } else {
    parallel_for(count, body);
  }
}

}  // namespace warpmeter::attention::detail
