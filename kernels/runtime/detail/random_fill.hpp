#pragma once

#include <cstdint>

#include "kernels/runtime/cpu_isa.hpp"
#include "kernels/runtime/dtype.hpp"
#include "kernels/runtime/stream.hpp"

namespace warpmeter::detail {

enum class Distribution : std::uint8_t { normal, uniform, integers };

/// What a random fill writes. Elements per Philox block: 4 (one word each), of integers 2 (two words each).
struct RandomFill {
  Distribution distribution = Distribution::normal;
  DType dtype = DType::fp32;
  std::uint64_t seed = 0;
  std::uint64_t stream_id = 0;
  float scale = 1;   ///< normal: the standard deviation; uniform: high - low
  float offset = 0;  ///< uniform: low
  float least = 0;   ///< uniform: bounds that the rounded value keeps
  float most = 0;
  std::uint64_t bound = 1;  ///< integers
};

[[nodiscard]] RandomFill normal_fill(DType dtype, std::uint64_t seed, std::uint64_t stream_id, float stddev);
[[nodiscard]] RandomFill uniform_fill(DType dtype, std::uint64_t seed, std::uint64_t stream_id, float low, float high);
[[nodiscard]] RandomFill integers_fill(DType dtype, std::uint64_t seed, std::uint64_t stream_id, std::int64_t bound);

/// Writes elements [first, first + count) of the stream to data[0 .. count): the part of a tensor that starts at
/// element `first`.
void random_fill_cpu(void* data, std::uint64_t first, std::int64_t count, const RandomFill& fill);
void random_fill_cuda(void* data, std::uint64_t first, std::int64_t count, const RandomFill& fill, StreamView stream);

/// One thread's part of random_fill_cpu with the given level's instructions.
void random_fill_serial(CpuIsa isa, void* data, std::uint64_t first, std::int64_t count, const RandomFill& fill);

}  // namespace warpmeter::detail
