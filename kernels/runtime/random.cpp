#include "kernels/runtime/random.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "kernels/runtime/check.hpp"
#include "kernels/runtime/detail/random_fill.hpp"
#include "kernels/runtime/random_philox.hpp"

namespace warpmeter {
namespace detail {
namespace {

bool is_float(DType dtype) {
  return storage_of(dtype) == DType::fp32 || is_16bit(dtype);
}

float rounded(float value, DType dtype) {
  if (dtype == DType::bf16) {
    return philox::from_bits(static_cast<std::uint32_t>(philox::to_bf16(value)) << 16);
  }
  if (dtype == DType::fp16) {
    const std::uint16_t bits = philox::to_fp16(value);
    const float magnitude = (bits & 0x7C00U) == 0x7C00U ? std::numeric_limits<float>::infinity()
                            : (bits & 0x7C00U) == 0     ? std::ldexp(static_cast<float>(bits & 0x3FFU), -24)
                                                        : std::ldexp(static_cast<float>((bits & 0x3FFU) | 0x400U),
                                                                     static_cast<int>((bits >> 10) & 0x1FU) - 25);
    return (bits & 0x8000U) != 0 ? -magnitude : magnitude;
  }
  return value;
}

/// The largest value of `dtype` below `value`, or the least not below it.
float neighbour(float value, DType dtype, bool below) {
  const float direction = below ? -std::numeric_limits<float>::infinity() : std::numeric_limits<float>::infinity();
  float candidate = value;
  // One unit of the type is 2^16 (bf16) or up to 2^24 (fp16's subnormals) of fp32's: step in the type's own units.
  for (int tries = 0; tries < 3; ++tries) {
    const float r = rounded(candidate, dtype);
    if (below ? r < value : r >= value) return r;
    const float unit = dtype == DType::bf16   ? std::max(std::fabs(r) * 0x1p-8f, std::numeric_limits<float>::min())
                       : dtype == DType::fp16 ? std::max(std::fabs(r) * 0x1p-11f, 0x1p-24f)
                                              : 0.0f;
    candidate = unit == 0.0f ? std::nextafter(r, direction) : below ? r - unit : r + unit;
  }
  return candidate;
}

}  // namespace

RandomFill normal_fill(DType dtype, std::uint64_t seed, std::uint64_t stream_id, float stddev) {
  WM_CHECK(is_float(dtype), "normal values as " + std::string(name(dtype)));
  WM_CHECK(std::isfinite(stddev) && stddev >= 0, "standard deviation " + std::to_string(stddev));
  RandomFill fill;
  fill.distribution = Distribution::normal;
  fill.dtype = dtype;
  fill.seed = seed;
  fill.stream_id = stream_id;
  fill.scale = stddev;
  return fill;
}

RandomFill uniform_fill(DType dtype, std::uint64_t seed, std::uint64_t stream_id, float low, float high) {
  WM_CHECK(is_float(dtype), "uniform values as " + std::string(name(dtype)));
  WM_CHECK(std::isfinite(low) && std::isfinite(high) && low < high && std::isfinite(high - low),
           "interval [" + std::to_string(low) + ", " + std::to_string(high) + ")");
  RandomFill fill;
  fill.distribution = Distribution::uniform;
  fill.dtype = dtype;
  fill.seed = seed;
  fill.stream_id = stream_id;
  fill.scale = high - low;
  fill.offset = low;
  fill.least = neighbour(low, dtype, false);
  fill.most = neighbour(high, dtype, true);
  WM_CHECK(fill.least <= fill.most, "no " + std::string(name(dtype)) + " value in the interval");
  return fill;
}

RandomFill integers_fill(DType dtype, std::uint64_t seed, std::uint64_t stream_id, std::int64_t bound) {
  WM_CHECK(dtype == DType::int32 || dtype == DType::int64, "integers as " + std::string(name(dtype)));
  WM_CHECK(bound >= 1 && (dtype == DType::int64 || bound <= (std::int64_t{1} << 31)),
           "bound " + std::to_string(bound) + " of " + std::string(name(dtype)));
  RandomFill fill;
  fill.distribution = Distribution::integers;
  fill.dtype = dtype;
  fill.seed = seed;
  fill.stream_id = stream_id;
  fill.bound = static_cast<std::uint64_t>(bound);
  return fill;
}

}  // namespace detail

namespace {

void run(const Tensor& tensor, const detail::RandomFill& fill, StreamView stream) {
  WM_CHECK(tensor.defined(), "random fill of an undefined tensor");
  WM_CHECK(tensor.device() == stream.device,
           "tensor on " + name(tensor.device()) + ", stream of " + name(stream.device));
  if (tensor.elements() == 0) return;
  if (tensor.device().is_cpu()) return detail::random_fill_cpu(tensor.data(), 0, tensor.elements(), fill);
#if WARPMETER_CUDA
  detail::random_fill_cuda(tensor.data(), 0, tensor.elements(), fill, stream);
#endif
}

}  // namespace

void fill_normal(const Tensor& tensor, std::uint64_t seed, std::uint64_t stream_id, StreamView stream, float stddev) {
  run(tensor, detail::normal_fill(tensor.dtype(), seed, stream_id, stddev), stream);
}

void fill_uniform(const Tensor& tensor, std::uint64_t seed, std::uint64_t stream_id, StreamView stream, float low,
                  float high) {
  run(tensor, detail::uniform_fill(tensor.dtype(), seed, stream_id, low, high), stream);
}

void fill_integers(const Tensor& tensor, std::uint64_t seed, std::uint64_t stream_id, StreamView stream,
                   std::int64_t bound) {
  run(tensor, detail::integers_fill(tensor.dtype(), seed, stream_id, bound), stream);
}

}  // namespace warpmeter
