#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/runtime/parallel.hpp"

namespace warpmeter::layers::detail {

/// Elements that take longer than waking another thread does.
inline constexpr std::int64_t kWorthwhileElements = 1 << 15;

/// body(row) for every row, in even, contiguous parts a thread; in the calling thread where there is little to do.
template <class Body>
void over_rows(std::int64_t rows, std::int64_t width, Body&& body) {
  if (rows * width < kWorthwhileElements) {
    for (std::int64_t row = 0; row < rows; ++row) body(row);
  } else {
    parallel_for_static(rows, body);
  }
}

/// body(begin, count) over pieces of a dense array whose borders do not depend on the number of threads.
template <class Body>
void over_pieces(std::int64_t count, std::int64_t piece, Body&& body) {
  over_rows((count + piece - 1) / piece, piece, [&](std::int64_t index) {
    const std::int64_t begin = index * piece;
    body(begin, std::min(piece, count - begin));
  });
}

/// Address of element `index` of an array with `bytes` an element.
inline const void* at(const void* data, std::int64_t index, std::size_t bytes) {
  return static_cast<const char*>(data) + index * static_cast<std::int64_t>(bytes);
}
inline void* at(void* data, std::int64_t index, std::size_t bytes) {
  return static_cast<char*>(data) + index * static_cast<std::int64_t>(bytes);
}

}  // namespace warpmeter::layers::detail
