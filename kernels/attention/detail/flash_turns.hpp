#pragma once

#include <sched.h>

#include "kernels/attention/detail/flash_micro.hpp"

/// How key blocks add their shares of dQ one after the other (see flash_detail::KeyBlock).
namespace warpmeter::attention::WM_ISA {

inline void wait_for_turn(const std::int32_t* turn, std::int32_t mine) {
  for (int spins = 0; __atomic_load_n(turn, __ATOMIC_ACQUIRE) != mine; ++spins) {
    if (spins < 2000) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    } else {
      sched_yield();
    }
  }
}

/// Adds the block's share of dQ for `rows` queries; `ordinal` is the key block's index, `last` that of the last one
/// which these queries see.
template <class T>
void add_query_gradient(const flash_detail::BackwardHead& head, const flash_detail::Shape& shape, Index row0,
                        Index rows, const float* share, Index ld, Index ordinal, Index last) {
  const Index head_dim = shape.head_dim;
  T* const out = static_cast<T*>(head.dq.data) + row0 * head.dq.stride;
  float* sum = head.dq_sum == nullptr ? nullptr : head.dq_sum + row0 * head_dim;
  Index stride = head_dim;
  if constexpr (sizeof(T) == sizeof(float)) {
    sum = reinterpret_cast<float*>(out);
    stride = head.dq.stride;
  }
  if (ordinal == 0) {
    if (sizeof(T) == sizeof(float) || last == 0) {
      write_rows(share, ld, rows, head_dim, shape.scale, out, head.dq.stride);
    } else {
      write_rows(share, ld, rows, head_dim, shape.scale, sum, stride);
    }
    return;
  }
  const bool finish = sizeof(T) != sizeof(float) && ordinal == last;
  const Index whole = head_dim / kWidth * kWidth;
  const Index rest = head_dim - whole;
  const Vec scale = broadcast(shape.scale);
  for (Index row = 0; row < rows; ++row) {
    float* const to = sum + row * stride;
    const float* const from = share + row * ld;
    T* const result = finish ? out + row * head.dq.stride : nullptr;
    for (Index k = 0; k < whole; k += kWidth) {
      const Vec value = fma(load(from + k), scale, load(to + k));
      if (finish) {
        store(result + k, value);
      } else {
        store(to + k, value);
      }
    }
    if (rest > 0) {
      const Vec value = fma(load(from + whole), scale, load_partial(to + whole, rest));
      if (finish) {
        store_partial(result + whole, value, rest);
      } else {
        store_partial(to + whole, value, rest);
      }
    }
  }
}

}  // namespace warpmeter::attention::WM_ISA
