#pragma once

#include <cstdint>

#include "kernels/runtime/isa_math.hpp"

/// Rows of any length by vectors, for files compiled once an instruction set (isa_vec.hpp).
namespace warpmeter::vec::WM_ISA {

/// Calls body(offset, lanes) over a row; lanes is kWidth but for a last partial vector.
template <class Body>
WM_INLINE void for_vectors(std::int64_t count, Body body) {
  std::int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) body(i, std::int64_t{kWidth});
  if (i < count) body(i, count - i);
}

/// The first `lanes` lanes, 1 <= lanes <= kWidth; the others are 0. Touches nothing beyond.
template <class T>
WM_INLINE Vec load_lanes(const T* p, std::int64_t lanes) {
  return lanes == kWidth ? load(p) : load_partial(p, lanes);
}
template <class T>
WM_INLINE void store_lanes(T* p, Vec v, std::int64_t lanes) {
  if (lanes == kWidth) {
    store(p, v);
  } else {
    store_partial(p, v, lanes);
  }
}

/// `v` in the first `lanes` lanes, `other` in the rest.
WM_INLINE Vec keep_lanes(Vec v, std::int64_t lanes, float other) {
  return lane_index() < broadcast_int(static_cast<std::int32_t>(lanes)) ? v : broadcast(other);
}

}  // namespace warpmeter::vec::WM_ISA
