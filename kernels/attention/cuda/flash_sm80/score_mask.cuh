#pragma once

#include <cuda_runtime.h>

/// The mask on an accumulator of scores (see warp_tile.cuh for its layout).
namespace warpmeter::attention::flash_sm80 {

/// Scores (keys by queries) of pairs that the mask hides become -inf: key r of the block is visible to query c of the
/// columns when r <= diagonal + c. Keys behind kv_len are not visible: their score 0 could exceed a very negative LSE
/// by more than exp can hold. Row 0 of `s` is the block's key `first_key`.
template <int kM, int kN>
__device__ __forceinline__ void mask_scores(float (&s)[kM][kN][4], int diagonal, int key_rows, int keys_of_block,
                                            int first_key, int lane) {
  if (diagonal >= keys_of_block - 1 && key_rows == keys_of_block) return;
  const int keys = key_rows - first_key - lane / 4;
  const int seen = diagonal - first_key - lane / 4 + (lane % 4) * 2;
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int key = m * 16 + h * 8;
          if (key >= keys || key > seen + n * 8 + e) s[m][n][2 * h + e] = -INFINITY;
        }
      }
    }
  }
}

}  // namespace warpmeter::attention::flash_sm80
