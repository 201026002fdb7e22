#pragma once

#include "kernels/primer/cuda/toolbox.cuh"
#include "kernels/ptx/mma.cuh"

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

/// (x & mask) | bits, in one instruction where `bits` is in a register: an instruction takes one constant only, and the
/// compiler would make two of it.
__device__ __forceinline__ std::uint32_t and_or(std::uint32_t x, std::uint32_t mask, std::uint32_t bits) {
  std::uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(x), "r"(mask), "r"(bits));
  return result;
}
/// kMagic in a register, unknown to the compiler.
template <class T>
__device__ __forceinline__ std::uint32_t magic_register() {
  std::uint32_t magic;
  asm volatile("mov.b32 %0, %1;" : "=r"(magic) : "n"(Magic<T>::kMagic));
  return magic;
}

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

/// y in shared memory as gemv_kernel reads it: pieces of kGemvInner elements of 16 bits (fp32 in three parts), in each
/// 16 words of load_y_pairs, those together that the four threads of a quad read at a time; a piece of zeros; the sums
/// of y over each piece.
template <class T>
struct StagedY {
  static constexpr int kParts = sizeof(T) == 4 ? 3 : 1;
  uint4* words;  ///< (kParts, inner / 8)
  uint4* zeros;  ///< a piece
  float* sums;   ///< (inner / kGemvInner)

  __host__ __device__ static std::int64_t bytes(std::int64_t inner) {
    return (kParts * inner / 8 + 16) * 16 + inner / kGemvInner * 4;
  }
  __device__ StagedY(void* memory, std::int64_t inner)
      : words(static_cast<uint4*>(memory)),
        zeros(words + kParts * inner / 8),
        sums(reinterpret_cast<float*>(zeros + 16)) {}

  __device__ void fill(const T* y, int inner) {
    if (threadIdx.x < 16) zeros[threadIdx.x] = make_uint4(0, 0, 0, 0);
    for (int word = threadIdx.x; word < inner / 8; word += blockDim.x) {  // whole groups of 16 threads
      const int place = word / 16 * 16 + word % 4 * 4 + word / 4 % 4;
      float sum = 0.0f;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        std::uint32_t pairs[4];
        load_y_pairs(y + word * 8, part, pairs);
        words[part * (inner / 8) + place] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) sum += to_float(y[word * 8 + i]);
#pragma unroll
      for (int mask = 8; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xffffu << (threadIdx.x & 16), sum, mask);
      if (word % 16 == 0) sums[word / 16] = sum;
    }
    __syncthreads();
  }
};

/// 16 bytes of weights; the row's next 256 bytes will be asked for, too.
__device__ __forceinline__ uint4 load_words(const uint4* p) {
  uint4 x;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(p));
  return x;
}

/// z = a y for a single column, bound by reading the weights. A block stays and goes through tiles of 16 rows, with y
/// in shared memory. Its warps take turns at stretches of four pieces of 128 along `inner`; where a warp has multiplied
/// two pieces, it asks for those that it needs there next. A piece is eight products of 16 x 8 x 16 on the tensor
/// cores, of which one column is wanted (three in fp32): weights go in as kBase + n, as they come out of their words
/// with a shift and a mask, and
///   sum y (n - offset) = sum y (kBase + n) - (kBase + offset) sum y.
/// Asks for whole pieces in rows and groups.
template <class T>
__global__ void __launch_bounds__(32 * kGemvWarps, 2) gemv_kernel(Weights<T> a, const T* y, T* z, std::int64_t tiles) {
  using M = std::conditional_t<std::is_same_v<T, __half>, __half, __nv_bfloat16>;
  constexpr int kPieces = 4;
  extern __shared__ uint4 memory[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, in_quad = lane % 4, part = lane / 4;
  const int pieces = static_cast<int>(a.inner / kGemvInner);
  const int pieces_of_group = static_cast<int>(min(a.group_size, a.inner) / kGemvInner);
  // Columns of y beyond the parts are zeros: their threads read one piece of zeros again and again.
  StagedY<T> staged(memory, a.inner);
  const bool has_part = part < StagedY<T>::kParts;
  const uint4* const of_y = (has_part ? staged.words + part * (a.inner / 8) : staged.zeros) + in_quad;
  const int y_stride = has_part ? 16 : 0;

  struct Place {
    std::int64_t tile;
    int at;  // the stretch's first piece
  };
  const auto row_of = [&](const Place& place, int half) {
    return min(place.tile * kGemvRows + part + 8 * half, a.rows - 1);
  };
  const auto words_of = [&](const Place& place, int half) {
    return reinterpret_cast<const uint4*>(a.words + row_of(place, half) * a.row_words) + place.at * 4 + in_quad;
  };
  // Each of a quad's threads has the scales of one piece of its two rows, as they lie in memory.
  struct Scales {
    T scale[2];
    std::uint32_t offsets[2];
    int shift;
  };
  const auto load_scales = [&](const Place& place) {
    Scales scales{};
    if (place.tile >= tiles || place.at + in_quad >= pieces) return scales;
    const int group = (place.at + in_quad) / pieces_of_group;
    scales.shift = group % 8 * 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      scales.scale[half] = a.scales[row_of(place, half) * a.groups + group];
      scales.offsets[half] = a.offsets[row_of(place, half) * a.offset_words + group / 8];
    }
    return scales;
  };

  __shared__ float of_warps[2][kGemvWarps][kGemvRows];
  Place place{blockIdx.x, warp * kPieces};
  uint4 words[kPieces][2] = {};
#pragma unroll
  for (int u = 0; u < kPieces; ++u) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (place.at + u < pieces) words[u][half] = load_words(words_of(place, half) + u * 4);
    }
  }
  Scales scales = load_scales(place);
  staged.fill(y, static_cast<int>(a.inner));

  const std::uint32_t magic = magic_register<M>();
  float total[2] = {};
  int turn = 0;
  while (place.tile < tiles) {
    Place next{place.tile, place.at + kGemvWarps * kPieces};
    if (next.at >= pieces) next = {place.tile + gridDim.x, warp * kPieces};
    const bool more = next.tile < tiles;
    const uint4* const from[2] = {words_of(next, 0), words_of(next, 1)};
    float scale[2], base[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      scale[half] = to_float(scales.scale[half]);
      base[half] = Magic<M>::kBase + static_cast<float>(scales.offsets[half] >> scales.shift & 0xF);
    }
    scales = load_scales(next);
#pragma unroll
    for (int u = 0; u < kPieces; ++u) {
      const int piece = min(place.at + u, pieces - 1);  // beyond the end: a scale of 0
      float d[2][4] = {};                               // two sums at a time: neither product waits for the other
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint4 pairs = of_y[piece * y_stride + i * 4];
        const std::uint32_t word[2] = {(&words[u][0].x)[i], (&words[u][1].x)[i]};
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
          std::uint32_t of_a[4];
#pragma unroll
          for (int e = 0; e < 4; ++e) of_a[e] = and_or(word[e % 2] >> (4 * (j + e / 2)), 0x000f000f, magic);
          ptx::mma_m16n8k16<M>(d[j / 2], of_a, (&pairs.x)[j], (&pairs.x)[j + 1]);
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        // Of this thread's two columns; those that are not wanted are zeros, and one thread of the quad takes off the
        // sum.
        const float products = (d[0][2 * half] + d[1][2 * half]) + (d[0][2 * half + 1] + d[1][2 * half + 1]);
        const float taken = __shfl_sync(kAllLanes, base[half], u, 4) * (in_quad == 0 ? staged.sums[piece] : 0.0f);
        total[half] += __shfl_sync(kAllLanes, scale[half], u, 4) * (products - taken);
      }
      if (u % 2 == 1 && more) {  // two pieces are 128 bytes of a row, asked for together
#pragma unroll
        for (int item = 0; item < 4; ++item) {
          const int half = item / 2, of = u - 1 + item % 2;
          if (next.at + of < pieces) words[of][half] = load_words(from[half] + of * 4);
        }
      }
    }
    if (next.tile != place.tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        total[half] += __shfl_xor_sync(kAllLanes, total[half], 1);
        total[half] += __shfl_xor_sync(kAllLanes, total[half], 2);
        if (in_quad == 0) of_warps[turn][warp][part + 8 * half] = total[half];
        total[half] = 0.0f;
      }
      __syncthreads();  // one for each tile: the other half of of_warps is written in the meantime
      const std::int64_t row = place.tile * kGemvRows + threadIdx.x;
      if (threadIdx.x < kGemvRows && row < a.rows) {
        float sum = 0.0f;
        for (int k = 0; k < kGemvWarps; ++k) sum += of_warps[turn][k][threadIdx.x];
        z[row] = from_float<T>(sum);
      }
      turn ^= 1;
    }
    place = next;
  }
}

/// Whether gemv_kernel takes these sizes on the stream's device.
template <class T>
bool gemv_takes(const Problem& p, StreamView stream) {
  int limit = 0;
  WM_CUDA_CHECK(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, stream.device.index));
  return p.cols == 1 && p.inner % kGemvInner == 0 && p.group_size % kGemvInner == 0 &&
         StagedY<T>::bytes(p.inner) + 2048 <= limit;
}

template <class T>
void launch_gemv(const Weights<T>& a, const T* y, T* z, StreamView stream) {
  const auto bytes = static_cast<int>(StagedY<T>::bytes(a.inner));
  WM_CUDA_CHECK(cudaFuncSetAttribute(gemv_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const std::int64_t tiles = ceil_div(a.rows, kGemvRows);
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(tiles, 2 * multiprocessors(stream)));
  gemv_kernel<T><<<blocks, 32 * kGemvWarps, static_cast<std::size_t>(bytes), handle(stream)>>>(a, y, z, tiles);
  check_launch();
}

}  // namespace warpmeter::primer::int4
