#pragma once

#include "kernels/primer/cuda/int4_weights.cuh"
#include "kernels/primer/cuda/matmul_sm90.cuh"

namespace warpmeter::primer::int4 {

/// matmul_sm90's `a` from packed weights: each thread reads the words of its two rows and turns them into the registers
/// that wgmma takes. While one warpgroup does that, the other's products run. Asks for groups and rows of whole steps.
template <class T>
struct PackedA {
  static constexpr int kStageBytes = 0;
  static constexpr int kPending = 0;  ///< registers that products read may not change before they are done
  static constexpr int kStepInner = matmul_sm90::kTileInner;
  static constexpr int kRegisters = kStepInner / 16 * 4;
  using Pair = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;

  Weights<T> weights;
  int steps, steps_of_group;
  std::int64_t row[2];  // the thread's
  // Of the next step: its words, scales and offsets.
  uint4 words[2][2];
  T scale[2];
  int offset[2];
  std::uint32_t a[kRegisters];  // of this step: its operand

  __device__ __forceinline__ void begin(const matmul_sm90::TilePlace& place, int first_row) {
    const int thread = threadIdx.x % 128;
    const std::int64_t at = place.row + first_row + thread / 32 * 16 + thread % 32 / 4;
    row[0] = min(at, weights.rows - 1);
    row[1] = min(at + 8, weights.rows - 1);
    load(0);
    convert();
  }

  __device__ __forceinline__ void load(int step) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto* const of_row =
          reinterpret_cast<const uint4*>(weights.words + row[half] * weights.row_words + step * (kStepInner / 8));
      words[half][0] = of_row[0];
      words[half][1] = of_row[1];
      scale[half] = weights.scales[row[half] * weights.groups + step / steps_of_group];
      offset[half] = weights.offset(row[half], step / steps_of_group);
    }
  }

  /// Word i of a row holds its elements 8i to 8i + 7; this thread has 2q and 2q + 1 of each, q its place in the quad.
  __device__ __forceinline__ void convert() {
    const int shift = threadIdx.x % 4 * 8;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Pair base = pair_of(from_float<T>(Magic<T>::kBase + static_cast<float>(offset[half])));
      const Pair factor = pair_of(scale[half]);
#pragma unroll
      for (int i = 0; i < kStepInner / 8; ++i) {
        const std::uint32_t word = (&words[half][i / 4].x)[i % 4] >> shift;
        const std::uint32_t magic = (word & 0xf) | (word << 12 & 0xf0000) | Magic<T>::kMagic;
        const Pair value = __hmul2(__hsub2(*reinterpret_cast<const Pair*>(&magic), base), factor);
        a[i / 2 * 4 + i % 2 * 2 + half] = *reinterpret_cast<const std::uint32_t*>(&value);
      }
    }
  }

  __device__ __forceinline__ void multiply(float (&d)[matmul_sm90::kTileCols / 2], int step, std::uint32_t at,
                                           int /*first_row*/) {
    const std::uint64_t y = ptx::swizzled_descriptor(at, kStepInner * 128);
    ptx::hold_registers(a);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kStepInner / 16; ++k) {
      ptx::Wgmma<T, matmul_sm90::kTileCols>::template registers_shared<true>(d, a + 4 * k, y + k * 16 * 128 / 16,
                                                                             step > 0 || k > 0);
    }
    ptx::wgmma_commit();
    if (step + 1 < steps) load(step + 1);
    // Products read `a` until they are done, and the compiler does not know it: nothing of the next step may be
    // converted before the wait, so the words to convert are held back behind it.
    ptx::wgmma_wait<0>();
    ptx::hold_registers(d);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      hold(words[half][0]);
      hold(words[half][1]);
    }
    if (step + 1 < steps) convert();
  }

 private:
  static __device__ __forceinline__ void hold(uint4& x) {
    asm volatile("" : "+r"(x.x), "+r"(x.y), "+r"(x.z), "+r"(x.w)::"memory");
  }
  static __device__ __forceinline__ Pair pair_of(T x) {
    Pair pair;
    pair.x = x;
    pair.y = x;
    return pair;
  }
};

}  // namespace warpmeter::primer::int4
