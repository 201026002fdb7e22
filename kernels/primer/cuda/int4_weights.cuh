#pragma once

#include "kernels/attention/cuda/ptx/mma.cuh"
#include "kernels/primer/cuda/toolbox.cuh"

/// int4_matmul's packed weights on their way into tensor cores.
namespace warpmeter::primer::int4 {

/// a (rows, inner): eight weights a word along `inner`, lowest bits first; a group's scale and, eight a word, offset.
template <class T>
struct Weights {
  const std::uint32_t* words;
  const T* scales;
  const std::uint32_t* offsets;
  std::int64_t rows, inner, group_size;
  std::int64_t row_words, groups, offset_words;  ///< of a row

  [[nodiscard]] __device__ float scale(std::int64_t row, std::int64_t group) const {
    return to_float(scales[row * groups + group]);
  }
  [[nodiscard]] __device__ int offset(std::int64_t row, std::int64_t group) const {
    return offsets[row * offset_words + group / 8] >> (4 * (group % 8)) & 0xF;
  }
  /// A weight as it counts: scale * (weight - offset).
  [[nodiscard]] __device__ float operator()(std::int64_t row, std::int64_t k) const {
    const std::int64_t group = k / group_size;
    const int weight = words[row * row_words + k / 8] >> (4 * (k % 8)) & 0xF;
    return scale(row, group) * static_cast<float>(weight - offset(row, group));
  }
};

template <class T>
Weights<T> make_weights(const Arguments& arguments, const Problem& p) {
  Weights<T> a{arguments.input<std::uint32_t>(0),
               arguments.input<T>(1),
               arguments.input<std::uint32_t>(2),
               p.rows,
               p.inner,
               p.group_size,
               ceil_div(p.inner, 8),
               ceil_div(p.inner, p.group_size),
               0};
  a.offset_words = ceil_div(a.groups, 8);
  return a;
}

/// A 4-bit number in the low bits of kMagic is kBase plus that number, without any conversion: 128 + n in bf16, 1024 +
/// n in fp16, both exact.
template <class T>
struct Magic;
template <>
struct Magic<__nv_bfloat16> {
  static constexpr std::uint32_t kMagic = 0x43004300, kOnes = 0x3f803f80;
  static constexpr float kBase = 128.0f;
};
template <>
struct Magic<__half> {
  static constexpr std::uint32_t kMagic = 0x64006400, kOnes = 0x3c003c00;
  static constexpr float kBase = 1024.0f;
};

constexpr int kGemvRows = 16, kGemvWarps = 8, kGemvInner = 128;

/// Eight elements of y from p on as four words of pairs (0,4), (1,5), (2,6), (3,7), the order in which weights leave
/// their words. fp32 is the sum of three bf16, and `part` says which of them is wanted.
template <class T>
__device__ __forceinline__ void load_y_pairs(const T* p, int part, std::uint32_t (&pairs)[4]) {
  if constexpr (sizeof(T) == 2) {
    const uint4 raw = *reinterpret_cast<const uint4*>(p);
    pairs[0] = __byte_perm(raw.x, raw.z, 0x5410);
    pairs[1] = __byte_perm(raw.x, raw.z, 0x7632);
    pairs[2] = __byte_perm(raw.y, raw.w, 0x5410);
    pairs[3] = __byte_perm(raw.y, raw.w, 0x7632);
  } else {
    float x[8];
    *reinterpret_cast<float4*>(x) = *reinterpret_cast<const float4*>(p);
    *reinterpret_cast<float4*>(x + 4) = *reinterpret_cast<const float4*>(p + 4);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      pairs[i] = ptx::pack2<__nv_bfloat16>(x[i], x[i + 4]);
      for (int taken = 0; taken < part; ++taken) {
        const float2 before = ptx::unpack2<__nv_bfloat16>(pairs[i]);
        x[i] -= before.x;
        x[i + 4] -= before.y;
        pairs[i] = ptx::pack2<__nv_bfloat16>(x[i], x[i + 4]);
      }
    }
  }
}

/// z = a y for a single column, bound by reading the weights. A block has 16 rows; its eight warps deal out pieces of
/// 128 along `inner`. A piece is eight products of 16 x 8 x 16 on the tensor cores, of which one column is wanted
/// (three in fp32): weights go in as kBase + n, as they come out of their words with a shift and a mask, and for each
/// group
///   sum y (n - offset) = sum y (kBase + n) - (kBase + offset) sum y,
/// where sum y is one more product, with ones for weights. Asks for whole pieces in rows and groups.
template <class T>
__global__ void __launch_bounds__(32 * kGemvWarps) gemv_kernel(Weights<T> a, const T* y, T* z) {
  using M = std::conditional_t<std::is_same_v<T, __half>, __half, __nv_bfloat16>;
  constexpr int kParts = sizeof(T) == 4 ? 3 : 1, kUnroll = 4;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, in_quad = lane % 4, part = lane / 4;
  const std::int64_t first = blockIdx.x * std::int64_t{kGemvRows};
  const std::int64_t row[2] = {min(first + part, a.rows - 1), min(first + part + 8, a.rows - 1)};
  const int steps = static_cast<int>(a.inner / kGemvInner);
  const int steps_of_group = static_cast<int>(min(a.group_size, a.inner) / kGemvInner);
  const std::uint32_t ones[4] = {Magic<M>::kOnes, Magic<M>::kOnes, Magic<M>::kOnes, Magic<M>::kOnes};
  float total[2] = {};
  for (int step = warp; step < steps; step += kGemvWarps * kUnroll) {
    uint4 words[kUnroll][2] = {};
    float scale[kUnroll][2] = {}, base[kUnroll][2] = {};
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int at = step + u * kGemvWarps;
      if (at >= steps) break;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        words[u][half] =
            __ldcs(reinterpret_cast<const uint4*>(a.words + row[half] * a.row_words + std::int64_t{at} * 16) + in_quad);
        scale[u][half] = a.scale(row[half], at / steps_of_group);
        base[u][half] = Magic<M>::kBase + static_cast<float>(a.offset(row[half], at / steps_of_group));
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int at = step + u * kGemvWarps;
      if (at >= steps) break;
      float d[4] = {}, of_ones[4] = {};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        std::uint32_t pairs[4] = {};
        if (part < kParts) load_y_pairs(y + std::int64_t{at} * kGemvInner + in_quad * 32 + i * 8, part, pairs);
        const std::uint32_t word[2] = {(&words[u][0].x)[i], (&words[u][1].x)[i]};
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
          std::uint32_t of_a[4];
#pragma unroll
          for (int e = 0; e < 4; ++e) of_a[e] = (word[e % 2] >> (4 * (j + e / 2)) & 0x000f000f) | Magic<M>::kMagic;
          ptx::mma_m16n8k16<M>(d, of_a, pairs[j], pairs[j + 1]);
          ptx::mma_m16n8k16<M>(of_ones, ones, pairs[j], pairs[j + 1]);
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {  // of this thread's two columns; those that are not wanted are zeros
        const float products = d[2 * half] + d[2 * half + 1], sum = of_ones[2 * half] + of_ones[2 * half + 1];
        total[half] += scale[u][half] * (products - base[u][half] * sum);
      }
    }
  }
  __shared__ float of_warps[kGemvWarps][kGemvRows];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    total[half] += __shfl_xor_sync(kAllLanes, total[half], 1);
    total[half] += __shfl_xor_sync(kAllLanes, total[half], 2);
    if (in_quad == 0) of_warps[warp][part + 8 * half] = total[half];
  }
  __syncthreads();
  if (threadIdx.x >= kGemvRows || first + threadIdx.x >= a.rows) return;
  float sum = 0.0f;
  for (int k = 0; k < kGemvWarps; ++k) sum += of_warps[k][threadIdx.x];
  z[first + threadIdx.x] = from_float<T>(sum);
}

}  // namespace warpmeter::primer::int4
