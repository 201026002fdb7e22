// Compiled once an instruction set (isa_vec.hpp says what that forbids).
#include "kernels/layers/detail/row_kernels.hpp"
#include "kernels/runtime/isa_rows.hpp"

namespace warpmeter::layers::detail::WM_ISA {

namespace {

using namespace warpmeter::vec::WM_ISA;
using Index = std::int64_t;

constexpr float kInfinity = __builtin_inff();

WM_INLINE Vec square_root(Vec v) {
#if defined(WM_ISA_avx512)
  return _mm512_maskz_sqrt_ps(kAllLanes, v);
#elif defined(WM_ISA_avx2)
  return _mm256_sqrt_ps(v);
#else
  for (int i = 0; i < kWidth; ++i) v[i] = __builtin_sqrtf(v[i]);
  return v;
#endif
}

/// Four partial sums side by side hide the latency of one after the other.
template <class Term>
WM_INLINE float sum(Index count, Term term) {
  Vec partial[4] = {};
  Index i = 0;
  for (; i + 4 * kWidth <= count; i += 4 * kWidth) {
    for (int u = 0; u < 4; ++u) partial[u] = partial[u] + term(i + u * kWidth, Index{kWidth});
  }
  for (; i + kWidth <= count; i += kWidth) partial[0] = partial[0] + term(i, Index{kWidth});
  if (i < count) partial[1] = partial[1] + keep_lanes(term(i, count - i), count - i, 0.0f);
  return reduce_add((partial[0] + partial[1]) + (partial[2] + partial[3]));
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
void add(const void* a, const void* b, void* out, Index count) {
  const T *x = static_cast<const T*>(a), *y = static_cast<const T*>(b);
  T* z = static_cast<T*>(out);
  for_vectors(count, [&](Index i, Index lanes) WM_INLINE_LAMBDA {
    store_lanes(z + i, load_lanes(x + i, lanes) + load_lanes(y + i, lanes), lanes);
  });
}

template <class T>
void multiply(const void* a, const void* b, void* out, Index count) {
  const T *x = static_cast<const T*>(a), *y = static_cast<const T*>(b);
  T* z = static_cast<T*>(out);
  for_vectors(count, [&](Index i, Index lanes) WM_INLINE_LAMBDA {
    store_lanes(z + i, load_lanes(x + i, lanes) * load_lanes(y + i, lanes), lanes);
  });
}

WM_INLINE Vec sigmoid(Vec x) {
  return 1.0f / (1.0f + exp(-x));
}
WM_INLINE Vec silu_slope(Vec x, Vec s) {
  return s * (1.0f + x * (1.0f - s));
}

template <class T>
void silu(const void* a, void* out, Index count) {
  const T* x = static_cast<const T*>(a);
  T* z = static_cast<T*>(out);
  for_vectors(count, [&](Index i, Index lanes) WM_INLINE_LAMBDA {
    const Vec v = load_lanes(x + i, lanes);
    store_lanes(z + i, v * sigmoid(v), lanes);
  });
}

template <class T>
void silu_backward(const void* a, const void* d, void* out, Index count) {
  const T *x = static_cast<const T*>(a), *g = static_cast<const T*>(d);
  T* z = static_cast<T*>(out);
  for_vectors(count, [&](Index i, Index lanes) WM_INLINE_LAMBDA {
    const Vec v = load_lanes(x + i, lanes);
    store_lanes(z + i, load_lanes(g + i, lanes) * silu_slope(v, sigmoid(v)), lanes);
  });
}

template <class T>
void scale(void* x, Index count, float factor) {
  T* p = static_cast<T*>(x);
  for_vectors(count, [&](Index i, Index lanes)
                         WM_INLINE_LAMBDA { store_lanes(p + i, load_lanes(p + i, lanes) * factor, lanes); });
}

template <class T>
float rmsnorm_forward(const void* x, const void* addend, void* sum_out, const void* weight, void* out, Index count,
                      float epsilon) {
  const T *px = static_cast<const T*>(x), *pw = static_cast<const T*>(weight);
  T* po = static_cast<T*>(out);
  const T* s = px;
  if (addend != nullptr) {
    add<T>(x, addend, sum_out, count);
    s = static_cast<const T*>(sum_out);
  }
  const float squares = sum(count, [&](Index i, Index lanes) WM_INLINE_LAMBDA {
    const Vec v = load_lanes(s + i, lanes);
    return v * v;
  });
  const float inv_rms = 1.0f / __builtin_sqrtf(squares / static_cast<float>(count) + epsilon);
  for_vectors(count, [&](Index i, Index lanes) WM_INLINE_LAMBDA {
    store_lanes(po + i, load_lanes(s + i, lanes) * inv_rms * load_lanes(pw + i, lanes), lanes);
  });
  return inv_rms;
}

template <class T>
void rmsnorm_backward(const void* s_in, const void* weight, float inv_rms, const void* d_out, const void* d_residual,
                      void* d_x, float* d_weight, Index count) {
  const T *s = static_cast<const T*>(s_in), *w = static_cast<const T*>(weight), *d = static_cast<const T*>(d_out);
  const T* r = static_cast<const T*>(d_residual);
  T* dx = static_cast<T*>(d_x);
  const float dot = sum(count, [&](Index i, Index lanes) WM_INLINE_LAMBDA {
    return load_lanes(d + i, lanes) * load_lanes(w + i, lanes) * load_lanes(s + i, lanes);
  });
  // out = s * q * w with q = (mean(s^2) + eps)^(-1/2): dq/ds_i = -q^3 s_i / count.
  const float pull = dot * inv_rms * inv_rms * inv_rms / static_cast<float>(count);
  for_vectors(count, [&](Index i, Index lanes) WM_INLINE_LAMBDA {
    const Vec sv = load_lanes(s + i, lanes), dv = load_lanes(d + i, lanes);
    Vec value = dv * load_lanes(w + i, lanes) * inv_rms - sv * pull;
    if (r != nullptr) value = value + load_lanes(r + i, lanes);
    store_lanes(d_weight + i, load_lanes(d_weight + i, lanes) + dv * sv * inv_rms, lanes);
    store_lanes(dx + i, value, lanes);
  });
}

template <class T>
void rope(const float* table, const void* in, void* out, Index head_dim, bool inverse) {
  const T* x = static_cast<const T*>(in);
  T* y = static_cast<T*>(out);
  const IntVec lane = lane_index();
  const IntVec odd = -(lane & 1);  // lanes of 0 or -1
  // Even lanes get -sin, odd ones +sin; turned round for the inverse.
  const Vec sign = (odd != 0) != (inverse ? IntVec{} - 1 : IntVec{}) ? broadcast(1.0f) : broadcast(-1.0f);
  for_vectors(head_dim, [&](Index i, Index lanes) WM_INLINE_LAMBDA {
    const Vec angles = load_lanes(table + i, lanes), v = load_lanes(x + i, lanes);
    const Vec cosine = __builtin_shuffle(angles, lane & ~1), sine = __builtin_shuffle(angles, lane | 1);
    store_lanes(y + i, v * cosine + __builtin_shuffle(v, lane ^ 1) * sine * sign, lanes);
  });
}

template <class T>
void swiglu_forward(const void* gate, const void* up, void* out, Index count) {
  const T *g = static_cast<const T*>(gate), *u = static_cast<const T*>(up);
  T* z = static_cast<T*>(out);
  for_vectors(count, [&](Index i, Index lanes) WM_INLINE_LAMBDA {
    const Vec v = load_lanes(g + i, lanes);
    store_lanes(z + i, v * sigmoid(v) * load_lanes(u + i, lanes), lanes);
  });
}

template <class T>
void swiglu_backward(const void* gate, const void* up, const void* d_out, void* d_gate, void* d_up, void* out,
                     Index count) {
  const T *g = static_cast<const T*>(gate), *u = static_cast<const T*>(up), *d = static_cast<const T*>(d_out);
  T *dg = static_cast<T*>(d_gate), *du = static_cast<T*>(d_up), *z = static_cast<T*>(out);
  for_vectors(count, [&](Index i, Index lanes) WM_INLINE_LAMBDA {
    const Vec v = load_lanes(g + i, lanes), uv = load_lanes(u + i, lanes), dv = load_lanes(d + i, lanes),
              s = sigmoid(v);
    store_lanes(dg + i, dv * uv * silu_slope(v, s), lanes);
    store_lanes(du + i, dv * v * s, lanes);
    if (z != nullptr) store_lanes(z + i, v * s * uv, lanes);
  });
}

template <class T>
float log_sum_exp(const void* in, Index count) {
  const T* x = static_cast<const T*>(in);
  Vec most = broadcast(-kInfinity);
  for_vectors(count, [&](Index i, Index lanes) WM_INLINE_LAMBDA {
    most = max(keep_lanes(load_lanes(x + i, lanes), lanes, -kInfinity), most);
  });
  const float largest = reduce_max(most);
  const float total =
      sum(count, [&](Index i, Index lanes) WM_INLINE_LAMBDA { return exp(load_lanes(x + i, lanes) - largest); });
  return largest + __builtin_logf(total);
}

template <class T>
void subtract(const void* in, float value, float* out, Index count) {
  const T* x = static_cast<const T*>(in);
  for_vectors(count, [&](Index i, Index lanes)
                         WM_INLINE_LAMBDA { store_lanes(out + i, load_lanes(x + i, lanes) - value, lanes); });
}

template <class T>
void scaled_softmax(const void* in, float lse, float factor, void* out, Index count) {
  const T* x = static_cast<const T*>(in);
  T* y = static_cast<T*>(out);
  for_vectors(count, [&](Index i, Index lanes)
                         WM_INLINE_LAMBDA { store_lanes(y + i, exp(load_lanes(x + i, lanes) - lse) * factor, lanes); });
}

template <class T>
void scaled_exp(const float* x, float factor, void* out, Index count) {
  T* y = static_cast<T*>(out);
  for_vectors(count, [&](Index i, Index lanes)
                         WM_INLINE_LAMBDA { store_lanes(y + i, exp(load_lanes(x + i, lanes)) * factor, lanes); });
}

template <class T>
void add_to_float(const void* in, float* total, Index count) {
  const T* x = static_cast<const T*>(in);
  for_vectors(count, [&](Index i, Index lanes) WM_INLINE_LAMBDA {
    store_lanes(total + i, load_lanes(total + i, lanes) + load_lanes(x + i, lanes), lanes);
  });
}

template <class T>
double square_sum(const void* in, Index count) {
  const T* x = static_cast<const T*>(in);
  constexpr Index kPiece = 4096;  // fp32 partial sums of this many lose nothing that matters
  double total = 0;
  for (Index begin = 0; begin < count; begin += kPiece) {
    const Index n = count - begin < kPiece ? count - begin : kPiece;
    total += static_cast<double>(sum(n, [&](Index i, Index lanes) WM_INLINE_LAMBDA {
      const Vec v = load_lanes(x + begin + i, lanes);
      return v * v;
    }));
  }
  return total;
}

void adamw(float* w, const float* g, float* m, float* v, Index count, const AdamwFactors& f) {
  for_vectors(count, [&](Index i, Index lanes) WM_INLINE_LAMBDA {
    const Vec gradient = load_lanes(g + i, lanes) * f.gradient_scale;
    const Vec first = load_lanes(m + i, lanes) * f.beta1 + gradient * (1.0f - f.beta1);
    const Vec second = load_lanes(v + i, lanes) * f.beta2 + gradient * gradient * (1.0f - f.beta2);
    Vec weight = load_lanes(w + i, lanes) * f.decay_before;
    weight = weight - f.step_size * (first / (square_root(second) * f.root_scale + f.epsilon));
    weight = weight - weight * f.decay_after;
    store_lanes(m + i, first, lanes);
    store_lanes(v + i, second, lanes);
    store_lanes(w + i, weight, lanes);
  });
}

void join(const void* weight, const std::int16_t* correction, float* master, Index count) {
  const auto* bits = static_cast<const std::uint16_t*>(weight);
  for (Index i = 0; i < count; ++i) {
    const std::uint32_t joined = (static_cast<std::uint32_t>(bits[i]) << 16) +
                                 static_cast<std::uint32_t>(static_cast<std::int32_t>(correction[i]));
    __builtin_memcpy(master + i, &joined, sizeof(joined));
  }
}

void split(const float* master, void* weight, std::int16_t* correction, Index count) {
  auto* bits = static_cast<std::uint16_t*>(weight);
  for (Index i = 0; i < count; ++i) {
    std::uint32_t value;
    __builtin_memcpy(&value, master + i, sizeof(value));
    const std::uint32_t half = (value + 0x8000u) >> 16;
    bits[i] = static_cast<std::uint16_t>(half);
    correction[i] = static_cast<std::int16_t>(static_cast<std::uint16_t>(value - (half << 16)));
  }
}

template <class T>
const RowKernels* table() {
  static constexpr RowKernels kKernels = {
      to_float<T>,
      from_float<T>,
      add<T>,
      multiply<T>,
      silu<T>,
      silu_backward<T>,
      scale<T>,
      rmsnorm_forward<T>,
      rmsnorm_backward<T>,
      rope<T>,
      swiglu_forward<T>,
      swiglu_backward<T>,
      log_sum_exp<T>,
      subtract<T>,
      scaled_softmax<T>,
      scaled_exp<T>,
      add_to_float<T>,
      square_sum<T>,
  };
  return &kKernels;
}

}  // namespace

const RowKernels* row_kernels_fp32() {
  return table<float>();
}
const RowKernels* row_kernels_bf16() {
  return table<Bf16>();
}
const RowKernels* row_kernels_fp16() {
  return table<Fp16>();
}
const MasterKernels* master_kernels() {
  static constexpr MasterKernels kKernels = {adamw, join, split};
  return &kKernels;
}

}  // namespace warpmeter::layers::detail::WM_ISA
