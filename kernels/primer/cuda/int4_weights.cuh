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
  static constexpr std::uint32_t kMagic = 0x43004300;
  static constexpr float kBase = 128.0f;
};
template <>
struct Magic<__half> {
  static constexpr std::uint32_t kMagic = 0x64006400;
  static constexpr float kBase = 1024.0f;
};

constexpr int kGemvRows = 16, kGemvWarps = 4, kGemvInner = 128;

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

/// z = a y for a single column, bound by reading the weights. A block has 16 rows; its warps take turns at stretches of
/// four pieces of 128 along `inner`, and ask for the next stretch before they multiply the last. A piece is eight
/// products of 16 x 8 x 16 on the tensor cores, of which one column is wanted (three in fp32). Weights leave their
/// words as kBase + n, two at a time, with a shift and a mask; kBase + offset is taken off them in 16 bits, which is
/// exact, and the scale multiplies a piece's sums. Asks for whole pieces in rows and groups.
template <class T, int kWarps = kGemvWarps>
__global__ void __launch_bounds__(32 * kWarps) gemv_kernel(Weights<T> a, const T* y, T* z) {
  using M = std::conditional_t<std::is_same_v<T, __half>, __half, __nv_bfloat16>;
  using Pair = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
  constexpr int kParts = sizeof(T) == 4 ? 3 : 1, kPieces = 4;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, in_quad = lane % 4, part = lane / 4;
  const std::int64_t first = blockIdx.x * std::int64_t{kGemvRows};
  const std::int64_t row[2] = {min(first + part, a.rows - 1), min(first + part + 8, a.rows - 1)};
  const int pieces = static_cast<int>(a.inner / kGemvInner);
  const int pieces_of_group = static_cast<int>(min(a.group_size, a.inner) / kGemvInner);

  // Of a stretch: the words of this thread's two rows; each of a quad's threads has the scales of one piece.
  struct Stretch {
    uint4 words[kPieces][2];
    float scale[2], base[2];
  };
  const auto load = [&](int at) {
    Stretch stretch;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto* const words = reinterpret_cast<const uint4*>(a.words + row[half] * a.row_words) + in_quad;
#pragma unroll
      for (int u = 0; u < kPieces; ++u) {
        stretch.words[u][half] = at + u < pieces ? __ldcs(words + (at + u) * 4) : make_uint4(0, 0, 0, 0);
      }
      const int group = min(at + in_quad, pieces - 1) / pieces_of_group;
      stretch.scale[half] = at + in_quad < pieces ? a.scale(row[half], group) : 0.0f;
      stretch.base[half] = Magic<M>::kBase + static_cast<float>(a.offset(row[half], group));
    }
    return stretch;
  };

  float total[2] = {};
  Stretch next = load(warp * kPieces);
  for (int at = warp * kPieces; at < pieces; at += kWarps * kPieces) {
    const Stretch stretch = next;
    if (at + kWarps * kPieces < pieces) next = load(at + kWarps * kPieces);
#pragma unroll
    for (int u = 0; u < kPieces; ++u) {
      const std::int64_t k = std::int64_t{min(at + u, pieces - 1)} * kGemvInner + in_quad * 32;
      Pair base[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float of_piece = __shfl_sync(kAllLanes, stretch.base[half], u, 4);
        const std::uint32_t packed = ptx::pack2<M>(of_piece, of_piece);
        base[half] = *reinterpret_cast<const Pair*>(&packed);
      }
      float d[2][4] = {};  // two sums at a time: neither product waits for the other
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        std::uint32_t pairs[4] = {};
        if (part < kParts) load_y_pairs(y + k + i * 8, part, pairs);
        const std::uint32_t word[2] = {(&stretch.words[u][0].x)[i], (&stretch.words[u][1].x)[i]};
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
          std::uint32_t of_a[4];
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const std::uint32_t bits = (word[e % 2] >> (4 * (j + e / 2)) & 0x000f000f) | Magic<M>::kMagic;
            const Pair weights = __hsub2(*reinterpret_cast<const Pair*>(&bits), base[e % 2]);
            of_a[e] = *reinterpret_cast<const std::uint32_t*>(&weights);
          }
          ptx::mma_m16n8k16<M>(d[j / 2], of_a, pairs[j], pairs[j + 1]);
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {  // of this thread's two columns; those that are not wanted are zeros
        const float sum = (d[0][2 * half] + d[1][2 * half]) + (d[0][2 * half + 1] + d[1][2 * half + 1]);
        total[half] += __shfl_sync(kAllLanes, stretch.scale[half], u, 4) * sum;
      }
    }
  }
  __shared__ float of_warps[kWarps][kGemvRows];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    total[half] += __shfl_xor_sync(kAllLanes, total[half], 1);
    total[half] += __shfl_xor_sync(kAllLanes, total[half], 2);
    if (in_quad == 0) of_warps[warp][part + 8 * half] = total[half];
  }
  __syncthreads();
  if (threadIdx.x >= kGemvRows || first + threadIdx.x >= a.rows) return;
  float sum = 0.0f;
  for (int k = 0; k < kWarps; ++k) sum += of_warps[k][threadIdx.x];
  z[first + threadIdx.x] = from_float<T>(sum);
}

}  // namespace warpmeter::primer::int4
