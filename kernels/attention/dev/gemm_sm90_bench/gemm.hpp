#pragma once

#include <cstdint>

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

namespace warpmeter::attention::gemm_sm90 {

/// C = A B, bf16, row by row without gaps, accumulated in fp32: C (m, n), A (m, k), and B as `b_mn_major` has it. n and
/// k are multiples of 8, what the copy engine and 16-byte stores ask for.
struct Gemm {
  std::int64_t m, n, k;
  const __nv_bfloat16 *a, *b;
  __nv_bfloat16* c;
  /// Tiles of a column done one after another: 16 make 132 tiles of 128 x 256 about a square, which reads least.
  int rows_together = 16;
};

/// How B lies: as (n, k), a flash kernel's keys, or as (k, n), its values.
enum class Layout { k_major, mn_major };

/// Launches the product on `multiprocessors` persistent blocks. `kCluster` blocks of neighbouring rows load their
/// common B together. Throws DeviceError.
template <Layout kLayout, int kCluster>
void launch(const Gemm& gemm, int multiprocessors, cudaStream_t stream);

extern template void launch<Layout::k_major, 1>(const Gemm&, int, cudaStream_t);
extern template void launch<Layout::k_major, 2>(const Gemm&, int, cudaStream_t);
extern template void launch<Layout::mn_major, 1>(const Gemm&, int, cudaStream_t);
extern template void launch<Layout::mn_major, 2>(const Gemm&, int, cudaStream_t);

}  // namespace warpmeter::attention::gemm_sm90
