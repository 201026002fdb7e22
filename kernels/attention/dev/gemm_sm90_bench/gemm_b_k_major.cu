#include "kernels/attention/dev/gemm_sm90_bench/gemm.cuh"

namespace warpmeter::attention::gemm_sm90 {
template void launch<Layout::k_major, 1>(const Gemm&, int, cudaStream_t);
template void launch<Layout::k_major, 2>(const Gemm&, int, cudaStream_t);
}  // namespace warpmeter::attention::gemm_sm90
