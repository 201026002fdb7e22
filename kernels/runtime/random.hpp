#pragma once

#include <cstdint>

#include "kernels/runtime/tensor.hpp"

namespace warpmeter {

/// Fills `tensor` (fp32, tf32, bf16, fp16) with normal values of mean 0 and standard deviation `stddev`.
///
/// Element i is a function of (seed, stream id, i) alone: Philox4x32-10 on the 64-bit counter, then Box-Muller in fp32
/// with polynomials made of IEEE operations only, so CPU and CUDA give the same bits, for any number of threads and
/// for more than 2^32 elements. 16-bit types round the fp32 value to nearest even.
/// Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
void fill_normal(const Tensor& tensor, std::uint64_t seed, std::uint64_t stream_id, StreamView stream,
                 float stddev = 1.0f);

/// The same with values uniform in [low, high).
void fill_uniform(const Tensor& tensor, std::uint64_t seed, std::uint64_t stream_id, StreamView stream, float low,
                  float high);

/// Fills an int32 or int64 tensor with values uniform in [0, bound).
void fill_integers(const Tensor& tensor, std::uint64_t seed, std::uint64_t stream_id, StreamView stream,
                   std::int64_t bound);

}  // namespace warpmeter
