#pragma once

// AdamW over chunks of many tensors, for one way of keeping the weight and one pair of types of gradients and moments.
// Arithmetic is fp32 on the master. A thread handles four elements at a time, so that neighbouring threads are side by
// side in 16- and 32-bit arrays alike, kStep such groups under way; tensors of which an array does not begin on whole
// groups, and the last elements of any, go one by one.
//
// The step's factors (the bias corrections are powers of beta) are taken once a block, in fp64.

#include "kernels/layers/adamw.hpp"
#include "kernels/layers/cuda/launch.cuh"
#include "kernels/layers/cuda/tensor_list.cuh"

namespace warpmeter::layers::cuda {

/// A tensor of the list. `packed`: every array begins on 16 bytes.
struct AdamwEntry {
  AdamwTensor tensor;
  bool packed;
};

/// What a launch needs of the arguments.
struct AdamwStep {
  AdamwDefinition definition;
  float beta1, beta2, epsilon, weight_decay;
  bool scale_gradients;
  const StepState* state;
};

using AdamwLaunch = void (*)(const Context& context, const TensorList<AdamwEntry>& list, const AdamwStep& step);

/// The launcher for a weight's and a master's kind; null where there is none. One file each.
[[nodiscard]] AdamwLaunch adamw_plain(DType weight, DType gradient, DType moment);
[[nodiscard]] AdamwLaunch adamw_correction(DType gradient, DType moment);
[[nodiscard]] AdamwLaunch adamw_copy(DType weight, DType gradient, DType moment);

constexpr int kAdamwThreads = 256;

/// AdamW's scalars of one step.
struct AdamwFactors {
  float gradient_scale;
  float decay_before;  ///< w *= this first
  float step_size;     ///< w -= step_size * m / (sqrt(v) * root_scale + epsilon)
  float root_scale;
  float decay_after;  ///< w -= w * this last
};

__device__ inline AdamwFactors adamw_factors(const AdamwStep& a) {
  const double t = a.state->step + 1, lr = static_cast<double>(a.state->learning_rate);
  const double correction1 = 1 - pow(static_cast<double>(a.beta1), t);
  const double correction2 = 1 - pow(static_cast<double>(a.beta2), t);
  const double decay = lr * static_cast<double>(a.weight_decay);
  AdamwFactors f;
  f.gradient_scale = a.scale_gradients ? a.state->update_scale : 1.0f;
  if (a.definition == AdamwDefinition::torch) {
    f.decay_before = static_cast<float>(1 - decay);
    f.step_size = static_cast<float>(lr / correction1);
    f.root_scale = static_cast<float>(1 / sqrt(correction2));
    f.decay_after = 0;
  } else {
    f.decay_before = 1;
    f.step_size = static_cast<float>(lr * sqrt(correction2) / correction1);
    f.root_scale = 1;
    f.decay_after = static_cast<float>(decay);
  }
  return f;
}

// How the master is read and written: W is the weight's type.

template <class W>
struct PlainMaster {
  template <int kCount>
  __device__ static void get(const AdamwTensor& t, std::int64_t at, float (&w)[kCount]) {
    load(static_cast<const W*>(t.weight) + at, w);
  }
  template <int kCount>
  __device__ static void put(const AdamwTensor& t, std::int64_t at, const float (&w)[kCount]) {
    store(static_cast<W*>(t.weight) + at, w);
  }
};

template <class W>
struct CopyMaster {
  template <int kCount>
  __device__ static void get(const AdamwTensor& t, std::int64_t at, float (&w)[kCount]) {
    load(static_cast<const float*>(t.master) + at, w);
  }
  template <int kCount>
  __device__ static void put(const AdamwTensor& t, std::int64_t at, const float (&w)[kCount]) {
    store(static_cast<float*>(t.master) + at, w);
    store(static_cast<W*>(t.weight) + at, w);
  }
};

/// bf16 weight and int16 correction: master bits = (weight << 16) + correction (adamw.hpp).
struct CorrectionMaster {
  template <int kCount>
  __device__ static void get(const AdamwTensor& t, std::int64_t at, float (&w)[kCount]) {
    const auto* weight = static_cast<const std::uint16_t*>(t.weight) + at;
    const auto* correction = static_cast<const std::uint16_t*>(t.master) + at;
    if constexpr (kCount == 1) {
      w[0] = join(weight[0], correction[0]);
    } else {
      static_assert(kCount == 4);
      const uint2 high = *reinterpret_cast<const uint2*>(weight), low = *reinterpret_cast<const uint2*>(correction);
      w[0] = join(high.x & 0xffffu, low.x & 0xffffu);
      w[1] = join(high.x >> 16, low.x >> 16);
      w[2] = join(high.y & 0xffffu, low.y & 0xffffu);
      w[3] = join(high.y >> 16, low.y >> 16);
    }
  }
  template <int kCount>
  __device__ static void put(const AdamwTensor& t, std::int64_t at, const float (&w)[kCount]) {
    auto* weight = static_cast<std::uint16_t*>(t.weight) + at;
    auto* correction = static_cast<std::uint16_t*>(t.master) + at;
    std::uint32_t high[kCount], low[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const std::uint32_t bits = __float_as_uint(w[i]);
      high[i] = (bits + 0x8000u) >> 16;
      low[i] = bits & 0xffffu;  // bits - (high << 16), of which 16 bits are kept
    }
    if constexpr (kCount == 1) {
      weight[0] = static_cast<std::uint16_t>(high[0]);
      correction[0] = static_cast<std::uint16_t>(low[0]);
    } else {
      *reinterpret_cast<uint2*>(weight) = make_uint2(high[0] | high[1] << 16, high[2] | high[3] << 16);
      *reinterpret_cast<uint2*>(correction) = make_uint2(low[0] | low[1] << 16, low[2] | low[3] << 16);
    }
  }

 private:
  __device__ static float join(std::uint32_t weight, std::uint32_t correction) {
    const auto difference = static_cast<std::int32_t>(static_cast<std::int16_t>(correction));
    return __uint_as_float((weight << 16) + static_cast<std::uint32_t>(difference));
  }
};

template <class Master, class G, class M, int kCount, int kStep>
__device__ __forceinline__ void adamw_chunk(const AdamwTensor& t, std::int64_t begin, int count, const AdamwStep& a,
                                            const AdamwFactors& f) {
  constexpr int kStride = kAdamwThreads * kCount;
  for (int first = static_cast<int>(threadIdx.x) * kCount; first < count; first += kStride * kStep) {
    float w[kStep][kCount], g[kStep][kCount], m[kStep][kCount], v[kStep][kCount];
#pragma unroll
    for (int step = 0; step < kStep; ++step) {
      if (first + step * kStride >= count) continue;
      const std::int64_t at = begin + first + step * kStride;
      load(static_cast<const G*>(t.gradient) + at, g[step]);
      load(static_cast<const M*>(t.m) + at, m[step]);
      load(static_cast<const M*>(t.v) + at, v[step]);
      Master::get(t, at, w[step]);
    }
#pragma unroll
    for (int step = 0; step < kStep; ++step) {
      if (first + step * kStride >= count) continue;
      const std::int64_t at = begin + first + step * kStride;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const float gradient = g[step][i] * f.gradient_scale;
        m[step][i] = m[step][i] * a.beta1 + gradient * (1.0f - a.beta1);
        v[step][i] = v[step][i] * a.beta2 + gradient * gradient * (1.0f - a.beta2);
        float weight = w[step][i] * f.decay_before;
        weight -= f.step_size * __fdividef(m[step][i], sqrtf(v[step][i]) * f.root_scale + a.epsilon);
        w[step][i] = weight - weight * f.decay_after;
      }
      store(static_cast<M*>(t.m) + at, m[step]);
      store(static_cast<M*>(t.v) + at, v[step]);
      Master::put(t, at, w[step]);
    }
  }
}

template <class Master, class G, class M>
__global__ void __launch_bounds__(kAdamwThreads)
    adamw_kernel(const __grid_constant__ TensorList<AdamwEntry> list, const AdamwStep a) {
  __shared__ AdamwFactors factors;
  follow_previous();
  if (a.state->overflow != 0) return;
  if (threadIdx.x == 0) factors = adamw_factors(a);
  __syncthreads();  // `factors` is visible to all warps
  const AdamwFactors f = factors;
  const int index = list.find(blockIdx.x);
  const AdamwTensor& t = list.entries[index].tensor;
  const std::int64_t begin = (blockIdx.x - list.first[index]) * kChunk;
  const int count = static_cast<int>(min(kChunk, t.count - begin));
  const int whole = list.entries[index].packed ? count / 4 * 4 : 0;
  adamw_chunk<Master, G, M, 4, 2>(t, begin, whole, a, f);
  adamw_chunk<Master, G, M, 1, 1>(t, begin + whole, count - whole, a, f);
}

template <class Master, class G, class M>
void adamw_launch(const Context& context, const TensorList<AdamwEntry>& list, const AdamwStep& step) {
  launch(context, adamw_kernel<Master, G, M>, grid_of(list.chunks()), kAdamwThreads, 0, list, step);
}

/// Gradients are fp32 or W, moments fp32 or bf16.
template <class Master, class W>
AdamwLaunch adamw_of(DType gradient, DType moment) {
  if (moment == DType::bf16) {
    return gradient == DType::fp32 ? adamw_launch<Master, float, __nv_bfloat16>
                                   : adamw_launch<Master, W, __nv_bfloat16>;
  }
  return gradient == DType::fp32 ? adamw_launch<Master, float, float> : adamw_launch<Master, W, float>;
}

}  // namespace warpmeter::layers::cuda
