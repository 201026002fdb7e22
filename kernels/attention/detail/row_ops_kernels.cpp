// Compiled once an instruction set (isa_vec.hpp says what that forbids).
#include "kernels/attention/detail/row_ops.hpp"
#include "kernels/runtime/isa_rows.hpp"

namespace warpmeter::attention::detail::WM_ISA {

namespace {

using namespace warpmeter::vec::WM_ISA;
using Index = std::int64_t;

constexpr float kInfinity = __builtin_inff();

/// Four partial results side by side hide the latency of one after the other.
template <class Step>
WM_INLINE void accumulate(Index count, Vec (&partial)[4], Step step) {
  Index i = 0;
  for (; i + 4 * kWidth <= count; i += 4 * kWidth) {
    for (int u = 0; u < 4; ++u) partial[u] = step(partial[u], i + u * kWidth, Index{kWidth});
  }
  for (; i + kWidth <= count; i += kWidth) partial[0] = step(partial[0], i, Index{kWidth});
  if (i < count) partial[1] = step(partial[1], i, count - i);
}

template <class T>
WM_INLINE float row_max(const T* x, Index count) {
  Vec partial[4] = {broadcast(-kInfinity), broadcast(-kInfinity), broadcast(-kInfinity), broadcast(-kInfinity)};
  accumulate(count, partial, [&](Vec best, Index i, Index lanes) WM_INLINE_LAMBDA {
    return max(keep_lanes(load_lanes(x + i, lanes), lanes, -kInfinity), best);
  });
  return reduce_max(max(max(partial[0], partial[1]), max(partial[2], partial[3])));
}

WM_INLINE float sum_of(const Vec (&partial)[4]) {
  return reduce_add((partial[0] + partial[1]) + (partial[2] + partial[3]));
}

template <class T>
void fill(T* out, Index begin, Index end, float value) {
  const Vec v = broadcast(value);
  for_vectors(end - begin, [&](Index i, Index lanes) WM_INLINE_LAMBDA { store_lanes(out + begin + i, v, lanes); });
}

template <class T>
void to_float(const void* in, float* out, Index count) {
  const T* x = static_cast<const T*>(in);
  for_vectors(count,
              [&](Index i, Index lanes) WM_INLINE_LAMBDA { store_lanes(out + i, load_lanes(x + i, lanes), lanes); });
}

template <class T>
void from_float(const float* in, void* out, Index count) {
  T* y = static_cast<T*>(out);
  for_vectors(count,
              [&](Index i, Index lanes) WM_INLINE_LAMBDA { store_lanes(y + i, load_lanes(in + i, lanes), lanes); });
}

template <class T>
void scale(const void* in, void* out, Index count, float factor) {
  const T* x = static_cast<const T*>(in);
  T* y = static_cast<T*>(out);
  for_vectors(count, [&](Index i, Index lanes)
                         WM_INLINE_LAMBDA { store_lanes(y + i, load_lanes(x + i, lanes) * factor, lanes); });
}

template <class T>
void mask(const void* in, void* out, Index count, Index visible, float value) {
  const T* x = static_cast<const T*>(in);
  T* y = static_cast<T*>(out);
  // An eager masked_fill reads the whole row whatever the mask says.
  for_vectors(count, [&](Index i, Index lanes) WM_INLINE_LAMBDA {
    const Index left = visible - i < 0 ? 0 : (visible - i > kWidth ? kWidth : visible - i);
    store_lanes(y + i, keep_lanes(load_lanes(x + i, lanes), left, value), lanes);
  });
}

/// e^(x * factor - offset) over a row into `y`, its sum returned. For 16-bit types the sum is that of the unrounded
/// terms and nothing is stored: normalize() makes the terms again, rather than rounding them twice.
template <class T>
WM_INLINE float exponentials(const T* x, T* y, Index count, float factor, float offset) {
  Vec partial[4] = {};
  accumulate(count, partial, [&](Vec sum, Index i, Index lanes) WM_INLINE_LAMBDA {
    const Vec e = exp(fma(load_lanes(x + i, lanes), broadcast(factor), broadcast(-offset)));
    if constexpr (sizeof(T) == sizeof(float)) store_lanes(y + i, e, lanes);
    return sum + keep_lanes(e, lanes, 0.0f);
  });
  return sum_of(partial);
}

template <class T>
WM_INLINE void normalize(const T* x, T* y, Index count, float factor, float offset, float inverse) {
  for_vectors(count, [&](Index i, Index lanes) WM_INLINE_LAMBDA {
    if constexpr (sizeof(T) == sizeof(float)) {
      store_lanes(y + i, load_lanes(y + i, lanes) * inverse, lanes);
    } else {
      const Vec e = exp(fma(load_lanes(x + i, lanes), broadcast(factor), broadcast(-offset)));
      store_lanes(y + i, e * inverse, lanes);
    }
  });
}

/// `x` and `y` may be the same row.
template <class T>
WM_INLINE float softmax_of(const T* x, T* y, Index count, float factor) {
  const float largest = row_max(x, count);
  // A row of -inf alone, or of nothing: any finite offset gives zeros, while a NaN stays one.
  const float offset = largest == -kInfinity ? 0.0f : largest * factor;
  const float sum = exponentials(x, y, count, factor, offset);
  if (sum == 0.0f) {
    fill(y, 0, count, 0.0f);
    return -kInfinity;
  }
  normalize(x, y, count, factor, offset, 1.0f / sum);
  return offset + __builtin_logf(sum);
}

template <class T>
float softmax(const void* in, void* out, Index count) {
  return softmax_of(static_cast<const T*>(in), static_cast<T*>(out), count, 1.0f);
}

template <class T>
float scaled_softmax(void* s, Index visible, Index end, float factor) {
  T* x = static_cast<T*>(s);
  fill(x, visible, end, 0.0f);
  return softmax_of(x, x, visible, factor);
}

/// ds = p * (dp - sum(p * dp)) * factor; `ds` may be `dp`.
template <class T>
WM_INLINE void softmax_backward_of(const T* p, const T* dp, T* ds, Index count, float factor) {
  Vec partial[4] = {};
  accumulate(count, partial, [&](Vec sum, Index i, Index lanes) WM_INLINE_LAMBDA {
    return fma(load_lanes(p + i, lanes), load_lanes(dp + i, lanes), sum);
  });
  const float d = sum_of(partial);
  for_vectors(count, [&](Index i, Index lanes) WM_INLINE_LAMBDA {
    const Vec slope = (load_lanes(dp + i, lanes) - d) * factor;
    store_lanes(ds + i, load_lanes(p + i, lanes) * slope, lanes);
  });
}

template <class T>
void softmax_backward(const void* p, const void* dp, void* ds, Index count) {
  softmax_backward_of(static_cast<const T*>(p), static_cast<const T*>(dp), static_cast<T*>(ds), count, 1.0f);
}

template <class T>
void scaled_softmax_backward(const void* p, void* dp, Index visible, Index end, float factor) {
  T* ds = static_cast<T*>(dp);
  fill(ds, visible, end, 0.0f);
  softmax_backward_of(static_cast<const T*>(p), ds, ds, visible, factor);
}

template <class T>
constexpr RowOps kRowOps = {to_float<T>, from_float<T>,       scale<T>,          mask<T>,
                            softmax<T>,  softmax_backward<T>, scaled_softmax<T>, scaled_softmax_backward<T>};

}  // namespace

const RowOps* row_ops_fp32() {
  return &kRowOps<float>;
}
const RowOps* row_ops_bf16() {
  return &kRowOps<Bf16>;
}
const RowOps* row_ops_fp16() {
  return &kRowOps<Fp16>;
}

}  // namespace warpmeter::attention::detail::WM_ISA
