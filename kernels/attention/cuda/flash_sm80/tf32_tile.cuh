#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/attention/cuda/flash_sm80/tile.cuh"
#include "kernels/attention/cuda/flash_sm80/warp_tile.cuh"
#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/ldmatrix.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/shared_address.cuh"
#include "kernels/ptx/tf32.cuh"

/// Tiles of fp32 in shared memory and products on mma.sync.m16n8k8 with tf32 operands.
///
/// kSplit (3xTF32): an operand is big + small, two tf32 numbers, and a product is big big + big small + small big. The
/// parts are cut off, not rounded, which costs two instructions instead of five (sm_90 has none for cvt.rna) and no
/// register for big: the tensor cores read an fp32 without its low 13 bits. Two cuts hold 21 to 22 bits.
/// The small products have an accumulator of their own: tensor cores truncate as they add, so every product in a chain
/// costs up to a unit in the last place of its sum, and the small ones would do so for nothing.
/// Otherwise operands are rounded to tf32 once. 16-bit operands are exact in tf32.
///
/// kSecondFirst: in a product of operands A and B the terms with B's small part come first instead of those with A's.
/// Scores and dP are computed in several kernels, here with the query side as A and there as B; with the query side
/// first everywhere they have the same bits.
///
/// A tile is rows x kHeadDim floats with a row pitch of kHeadDim + 4: an odd number of 16-byte units, so that ldmatrix
/// (a row of 16 bytes is four floats) has no bank conflicts. There is no transposing load for 32-bit elements; a
/// product over the rows of a tile takes row 2t as element t of a k step and row 2t + 1 as element t + 4, on both
/// sides, so that an accumulator is an A operand as it stands. Its column tiles go in groups of G, and column g of
/// tile n of a group is column G g + n of the group's 8 G: lane (g, t) reads the G elements it needs with one load,
/// without bank conflicts, and holds 2 G neighbouring columns of the result (store_columns, for_columns).
namespace warpmeter::attention::flash_sm80 {

/// Scores of fp32 operands are split in tf32 as well: the exponential makes of an absolute error of a score a relative
/// one of P, and sums of few large terms would miss 1e-3.
template <class T>
constexpr bool kSplitScores = sizeof(T) == 4;

template <int kColumns>
constexpr int kTf32Pitch = kColumns + 4;

__device__ __forceinline__ float to_float(float x) {
  return x;
}
__device__ __forceinline__ float to_float(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ __forceinline__ float to_float(__half x) {
  return __half2float(x);
}

/// Four elements, 4 * sizeof(T)-byte aligned.
__device__ __forceinline__ void load_four(const float* source, float (&x)[4]) {
  const float4 f = *reinterpret_cast<const float4*>(source);
  x[0] = f.x;
  x[1] = f.y;
  x[2] = f.z;
  x[3] = f.w;
}
template <class T>
__device__ __forceinline__ void load_four(const T* source, float (&x)[4]) {
  const uint2 packed = *reinterpret_cast<const uint2*>(source);
  const float2 low = ptx::unpack2<T>(packed.x), high = ptx::unpack2<T>(packed.y);
  x[0] = low.x;
  x[1] = low.y;
  x[2] = high.x;
  x[3] = high.y;
}

/// Starts the copy of `rows` rows (0..kRows) of `head_dim` elements into the tile, as fp32; `source` is row 0. The rest
/// of the tile becomes zero and is not read from global memory. fp32 is copied asynchronously and the caller commits;
/// 16-bit elements are converted on the way and stored when the function returns.
template <class T, int kHeadDim, int kRows, int kThreads>
__device__ __forceinline__ void load_tf32_tile(std::uint32_t tile, const T* source, std::int64_t row_stride, int rows,
                                               int head_dim, bool vector, int thread) {
  constexpr int kPieces = kHeadDim / 4;
  constexpr int kStep = kThreads / kPieces;  // rows that all threads copy at once
  static_assert(kThreads % kPieces == 0);
  const int first = thread / kPieces, column = thread % kPieces * 4;
  std::uint32_t destination = tile + (first * kTf32Pitch<kHeadDim> + column) * 4;
  const T* from = source + first * row_stride + column;
  const int columns = head_dim - column;
  if (sizeof(T) == 4 && vector) {
    // Rows of this thread that exist; the others are filled with zeros.
    const int valid = columns > 0 ? rows - first : 0;
#pragma unroll
    for (int i = 0; i < kRows; i += kStep) {
      const bool copy = i < valid;
      if (kRows % kStep == 0 || first + i < kRows) {
        ptx::cp_async_16(destination, copy ? from : source, copy ? 16 : 0);
      }
      destination += kStep * kTf32Pitch<kHeadDim> * 4;
      from += kStep * row_stride;
    }
    return;
  }
#pragma unroll 1
  for (int row = first; row < kRows; row += kStep) {
    const int here = row < rows ? columns : 0;
    if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        ptx::cp_async_4(destination + e * 4, e < here ? from + e : source, e < here ? 4 : 0);
      }
    } else {
      float x[4] = {0, 0, 0, 0};
      if (vector) {
        if (here > 0) load_four(from, x);
      } else {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (e < here) x[e] = to_float(from[e]);
        }
      }
      ptx::store_shared_v4(destination, __float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]),
                           __float_as_uint(x[3]));
    }
    destination += kStep * kTf32Pitch<kHeadDim> * 4;
    from += kStep * row_stride;
  }
}

/// kCount neighbouring elements, aligned to their size.
template <int kCount>
__device__ __forceinline__ void store_many(float* to, const float (&x)[kCount]) {
  if constexpr (kCount == 4) {
    *reinterpret_cast<float4*>(to) = make_float4(x[0], x[1], x[2], x[3]);
  } else if constexpr (kCount == 2) {
    *reinterpret_cast<float2*>(to) = make_float2(x[0], x[1]);
  } else {
    *to = x[0];
  }
}
template <int kCount, class T>
__device__ __forceinline__ void store_many(T* to, const float (&x)[kCount]) {
  if constexpr (kCount == 4) {
    *reinterpret_cast<uint2*>(to) = make_uint2(ptx::pack2<T>(x[0], x[1]), ptx::pack2<T>(x[2], x[3]));
  } else if constexpr (kCount == 2) {
    *reinterpret_cast<std::uint32_t*>(to) = ptx::pack2<T>(x[0], x[1]);
  } else {
    *reinterpret_cast<std::uint16_t*>(to) = static_cast<std::uint16_t>(ptx::pack2<T>(x[0], x[0]));
  }
}

/// kCount neighbouring columns from `column` on, a multiple of kCount, of a row that ends at head_dim.
template <int kCount, class T>
__device__ __forceinline__ void store_columns(T* row, int column, int head_dim, bool vector, const float (&x)[kCount]) {
  if (vector) {
    if (column < head_dim) store_many(row + column, x);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float one[1] = {x[i]};
      if (column + i < head_dim) store_many(row + column + i, one);
    }
  }
}

/// kCount registers of an operand, as tf32.
template <bool kSplit, int kCount>
struct Tf32Operand {
  std::uint32_t big[kCount];
  std::uint32_t small[kSplit ? kCount : 1];

  __device__ __forceinline__ void set(int i, float x) {
    if constexpr (kSplit) {
      constexpr std::uint32_t kTf32Bits = 0xffffe000;
      big[i] = __float_as_uint(x);
      small[i] = __float_as_uint(x - __uint_as_float(big[i] & kTf32Bits));
    } else {
      big[i] = ptx::to_tf32(x);
    }
  }
  __device__ __forceinline__ void set(int i, std::uint32_t bits) { set(i, __uint_as_float(bits)); }
};

/// A sum of products: with kSplit the small ones apart.
template <bool kSplit, int kM, int kN>
struct Tf32Sum {
  float big[kM][kN][4];
  float small[kSplit ? kM : 1][kSplit ? kN : 1][4];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          big[m][n][i] = 0.0f;
          if constexpr (kSplit) small[m][n][i] = 0.0f;
        }
      }
    }
  }
  [[nodiscard]] __device__ __forceinline__ float total(int m, int n, int i) const {
    if constexpr (kSplit) {
      return big[m][n][i] + small[m][n][i];
    } else {
      return big[m][n][i];
    }
  }
};

/// The small products of one k step: the terms with A's small part, or those with B's.
template <bool kOfB, int kM, int kN, int kSumN>
__device__ __forceinline__ void tf32_small_products(Tf32Sum<true, kM, kSumN>& sum, int first_n,
                                                    const Tf32Operand<true, 4> (&a)[kM],
                                                    const Tf32Operand<true, 2> (&b)[kN]) {
#pragma unroll
  for (int n = 0; n < kN; ++n) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      if constexpr (kOfB) {
        ptx::mma_m16n8k8_tf32(sum.small[m][first_n + n], a[m].big, b[n].small[0], b[n].small[1]);
      } else {
        ptx::mma_m16n8k8_tf32(sum.small[m][first_n + n], a[m].small, b[n].big[0], b[n].big[1]);
      }
    }
  }
}

/// sum[m][n] += a[m] b[n] for one k step. The big products stand between the small ones, which wait for each other.
template <bool kSplit, bool kSecondFirst, int kM, int kN, int kSumN>
__device__ __forceinline__ void tf32_step(Tf32Sum<kSplit, kM, kSumN>& sum, int first_n,
                                          const Tf32Operand<kSplit, 4> (&a)[kM],
                                          const Tf32Operand<kSplit, 2> (&b)[kN]) {
  if constexpr (kSplit) tf32_small_products<kSecondFirst>(sum, first_n, a, b);
#pragma unroll
  for (int n = 0; n < kN; ++n) {
#pragma unroll
    for (int m = 0; m < kM; ++m) ptx::mma_m16n8k8_tf32(sum.big[m][first_n + n], a[m].big, b[n].big[0], b[n].big[1]);
  }
  if constexpr (kSplit) tf32_small_products<!kSecondFirst>(sum, first_n, a, b);
}

/// Byte offset of this lane's row for an A operand (rows x k), stored row by row.
template <int kPitchA>
__device__ __forceinline__ std::uint32_t tf32_a_lane_offset(int lane) {
  return ((lane % 16) * kPitchA + (lane / 16) * 4) * 4;
}
/// ... for a B operand (k x n) stored as n rows of k elements: two 8-wide n tiles a load.
template <int kPitchB>
__device__ __forceinline__ std::uint32_t tf32_b_lane_offset(int lane) {
  return ((lane % 8 + (lane / 16) * 8) * kPitchB + ((lane / 8) % 2) * 4) * 4;
}
/// ... for the A operand of a product over the rows of two tiles.
template <int kTilePitch>
__device__ __forceinline__ std::uint32_t tf32_rows_lane_offset(int lane) {
  return ((lane % 4) * 2 * kTilePitch + lane / 4) * 4;
}
/// ... for the B operand of a product over the rows of a tile, with columns in groups of kGroup tiles.
template <int kTilePitch, int kGroup>
__device__ __forceinline__ std::uint32_t tf32_group_lane_offset(int lane) {
  return ((lane % 4) * 2 * kTilePitch + lane / 4 * kGroup) * 4;
}

/// Column tiles that a product works on at a time: enough independent sums for the tensor cores' latency.
template <int kN, int kMost = 4>
constexpr int kTf32Group = kN % 4 == 0 && kMost >= 4   ? 4
                           : kN % 2 == 0 && kMost >= 2 ? 2
                                                       : 1;

/// Calls body(column, values) for the columns of row m * 16 + h * 8 + lane / 4 of an accumulator of a product over
/// rows: kGroup neighbouring ones at a time.
template <int kGroup, int kM, int kN, class Body>
__device__ __forceinline__ void for_columns(const float (&acc)[kM][kN][4], int m, int h, int lane, Body&& body) {
#pragma unroll
  for (int first = 0; first < kN; first += kGroup) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float x[kGroup];
#pragma unroll
      for (int n = 0; n < kGroup; ++n) x[n] = acc[m][first + n][2 * h + e];
      body(first * 8 + ((lane % 4) * 2 + e) * kGroup, x);
    }
  }
}

/// The operands of kGroup column tiles: their rows i = 0, 1 of a k step.
template <bool kSplit, int kPitch, int kGroup>
__device__ __forceinline__ void load_group(Tf32Operand<kSplit, 2> (&b)[kGroup], std::uint32_t address) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::uint32_t row = address + i * kPitch * 4;
    if constexpr (kGroup == 4) {
      std::uint32_t x[4];
      ptx::load_shared_v4(row, x[0], x[1], x[2], x[3]);
#pragma unroll
      for (int n = 0; n < 4; ++n) b[n].set(i, x[n]);
    } else if constexpr (kGroup == 2) {
      const float2 x = ptx::load_shared_float2(row);
      b[0].set(i, x.x);
      b[1].set(i, x.y);
    } else {
      b[0].set(i, ptx::load_shared_float(row));
    }
  }
}

/// out = A B^T over kK k steps of 8, A (16 kM rows) and B (8 kN rows) both stored row by row. kUnroll: k steps whose
/// operands may be in registers at once.
template <bool kSplit, bool kSecondFirst, int kPitchA, int kPitchB, int kK, int kUnroll = 2, int kM, int kN>
__device__ __forceinline__ void tf32_product_abt(float (&out)[kM][kN][4], std::uint32_t a_lane, std::uint32_t b_lane) {
  static_assert(kN % 2 == 0);
  constexpr int kGroup = kTf32Group<kN>;
  Tf32Sum<kSplit, kM, kN> sum;
  sum.clear();
#pragma unroll kUnroll
  for (int k = 0; k < kK; ++k) {
    Tf32Operand<kSplit, 4> a[kM];
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      std::uint32_t bits[4];
      ptx::ldmatrix_x4(bits, a_lane + (m * 16 * kPitchA + k * 8) * 4);
#pragma unroll
      for (int i = 0; i < 4; ++i) a[m].set(i, bits[i]);
    }
#pragma unroll
    for (int first = 0; first < kN; first += kGroup) {
      Tf32Operand<kSplit, 2> b[kGroup];
#pragma unroll
      for (int n = 0; n < kGroup; n += 2) {
        std::uint32_t bits[4];
        ptx::ldmatrix_x4(bits, b_lane + ((first + n) * 8 * kPitchB + k * 8) * 4);
#pragma unroll
        for (int i = 0; i < 4; ++i) b[n + i / 2].set(i % 2, bits[i]);
      }
      tf32_step<kSplit, kSecondFirst>(sum, first, a, b);
    }
  }
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out[m][n][i] = sum.total(m, n, i);
    }
  }
}

/// The same for scores, which the backward has to add up as the forward did: what a score of 1e4 is off by, LSE is off
/// by too, and P = exp(S - LSE) is right. The forward of 16-bit operands adds 16 products at a time (mma.m16n8k16 and
/// wgmma), so these do: T as its own operands, packed from the tile's floats, which hold them exactly. The eight
/// columns of a half are taken in another order (t and t + 4 as neighbours), which is as an ldmatrix brings them;
/// tensor cores add at least those eight at once.
template <class T, bool kSecondFirst, int kPitchA, int kPitchB, int kK, int kUnroll = 2, int kM, int kN>
__device__ __forceinline__ void scores_product_abt(float (&out)[kM][kN][4], std::uint32_t a_lane,
                                                   std::uint32_t b_lane) {
  if constexpr (sizeof(T) == 4) {
    tf32_product_abt<kSplitScores<T>, kSecondFirst, kPitchA, kPitchB, kK, kUnroll>(out, a_lane, b_lane);
  } else {
    static_assert(kN % 2 == 0 && kK % 2 == 0);
    const auto pack = [](std::uint32_t low, std::uint32_t high) {
      return ptx::pack2<T>(__uint_as_float(low), __uint_as_float(high));
    };
    clear(out);
#pragma unroll kUnroll
    for (int k = 0; k < kK; k += 2) {
      std::uint32_t a[kM][4];
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          std::uint32_t bits[4];
          ptx::ldmatrix_x4(bits, a_lane + (m * 16 * kPitchA + (k + half) * 8) * 4);
          a[m][2 * half] = pack(bits[0], bits[2]);
          a[m][2 * half + 1] = pack(bits[1], bits[3]);
        }
      }
#pragma unroll
      for (int n = 0; n < kN; n += 2) {
        std::uint32_t b[2][2];  // of the two column tiles
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          std::uint32_t bits[4];
          ptx::ldmatrix_x4(bits, b_lane + (n * 8 * kPitchB + (k + half) * 8) * 4);
          b[0][half] = pack(bits[0], bits[1]);
          b[1][half] = pack(bits[2], bits[3]);
        }
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          ptx::mma_m16n8k16<T>(out[m][n], a[m], b[0][0], b[0][1]);
          ptx::mma_m16n8k16<T>(out[m][n + 1], a[m], b[1][0], b[1][1]);
        }
      }
    }
  }
}

/// acc += A B over the rows of a tile: A (16 kM rows x 8 kK columns) in an accumulator's layout, B stored as 8 kK rows
/// x 8 kN columns. kSplit: the tile's sum starts from zero and is added in fp32, since tensor cores truncate as they
/// add. b_lane: by tf32_group_lane_offset<kPitchB, kGroup>.
template <bool kSplit, int kPitchB, int kGroup, int kM, int kK, int kN>
__device__ __forceinline__ void tf32_product_ab(float (&acc)[kM][kN][4], const float (&a)[kM][kK][4],
                                                std::uint32_t b_lane) {
#pragma unroll
  for (int first = 0; first < kN; first += kGroup) {
    Tf32Sum<kSplit, kM, kGroup> sum;
    sum.clear();
    if constexpr (!kSplit) {
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int n = 0; n < kGroup; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) sum.big[m][n][i] = acc[m][first + n][i];
        }
      }
    }
#pragma unroll
    for (int k = 0; k < kK; ++k) {
      Tf32Operand<kSplit, 4> operand[kM];
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        operand[m].set(0, a[m][k][0]);
        operand[m].set(1, a[m][k][2]);
        operand[m].set(2, a[m][k][1]);
        operand[m].set(3, a[m][k][3]);
      }
      Tf32Operand<kSplit, 2> b[kGroup];
      load_group<kSplit, kPitchB>(b, b_lane + (k * 8 * kPitchB + first * 8) * 4);
      tf32_step<kSplit, false>(sum, 0, operand, b);
    }
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int n = 0; n < kGroup; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          acc[m][first + n][i] = kSplit ? acc[m][first + n][i] + sum.total(m, n, i) : sum.big[m][n][i];
        }
      }
    }
  }
}

/// out = A^T B over the 8 kK rows of two tiles, one row tile (16 columns of A) by kN column tiles of B. b_lane as
/// above.
template <bool kSplit, int kPitchA, int kPitchB, int kK, int kGroup, int kN>
__device__ __forceinline__ void tf32_product_atb(float (&out)[1][kN][4], std::uint32_t a_lane, std::uint32_t b_lane) {
  Tf32Sum<kSplit, 1, kN> sum;
  sum.clear();
#pragma unroll 2
  for (int k = 0; k < kK; ++k) {
    Tf32Operand<kSplit, 4> a[1];
    const std::uint32_t row = a_lane + k * 8 * kPitchA * 4;
    a[0].set(0, ptx::load_shared_float(row));
    a[0].set(1, ptx::load_shared_float(row + 8 * 4));
    a[0].set(2, ptx::load_shared_float(row + kPitchA * 4));
    a[0].set(3, ptx::load_shared_float(row + (kPitchA + 8) * 4));
#pragma unroll
    for (int first = 0; first < kN; first += kGroup) {
      Tf32Operand<kSplit, 2> b[kGroup];
      load_group<kSplit, kPitchB>(b, b_lane + (k * 8 * kPitchB + first * 8) * 4);
      tf32_step<kSplit, false>(sum, first, a, b);
    }
  }
#pragma unroll
  for (int n = 0; n < kN; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) out[0][n][i] = sum.total(0, n, i);
  }
}

/// e^x for x <= 0, within 2^-21.
__device__ __forceinline__ float exp_approx(float x) {
  return ptx::exp2_approx(x * 1.4426950408889634f);
}

}  // namespace warpmeter::attention::flash_sm80
