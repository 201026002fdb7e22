#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "kernels/attention/detail/row_ops.hpp"
#include "kernels/attention/problem.hpp"
#include "kernels/runtime/allocator.hpp"
#include "kernels/runtime/tensor.hpp"

/// The plain formula in fp64 and host tensors for the tests of decoding and prefill.
namespace warpmeter::attention::serving_test {

/// A dense (batch, heads, rows, head_dim) array of floats on the host, each value one that `dtype` has, beside its
/// bytes in that type.
struct HostTensor {
  std::int64_t batch, heads, rows, head_dim;
  DType dtype;
  std::vector<float> values;
  std::vector<std::byte> bytes;

  HostTensor(std::int64_t batch_, std::int64_t heads_, std::int64_t rows_, std::int64_t head_dim_, DType dtype_)
      : batch(batch_), heads(heads_), rows(rows_), head_dim(head_dim_), dtype(dtype_) {
    values.resize(static_cast<std::size_t>(batch * heads * rows * head_dim));
    bytes.resize(values.size() * size_of(dtype));
  }
  static HostTensor normal(std::int64_t batch, std::int64_t heads, std::int64_t rows, std::int64_t head_dim,
                           DType dtype, std::uint32_t seed, float magnitude = 1) {
    HostTensor t(batch, heads, rows, head_dim, dtype);
    std::mt19937 random(seed);
    std::normal_distribution<float> distribution(0, magnitude);
    for (float& value : t.values) value = distribution(random);
    t.encode();
    return t;
  }
  void encode() {  ///< values -> bytes, and the values become what the bytes say
    detail::row_ops(dtype).from_float(values.data(), bytes.data(), static_cast<std::int64_t>(values.size()));
    decode();
  }
  void decode() {
    detail::row_ops(dtype).to_float(bytes.data(), values.data(), static_cast<std::int64_t>(values.size()));
  }
  void poison() { std::memset(bytes.data(), 0xFF, bytes.size()); }
  [[nodiscard]] Operand operand() { return {bytes.data(), heads * rows * head_dim, rows * head_dim, head_dim}; }
  [[nodiscard]] ConstOperand from_row(std::int64_t row) const {
    return {bytes.data() + static_cast<std::size_t>(row * head_dim) * size_of(dtype), heads * rows * head_dim,
            rows * head_dim, head_dim};
  }
  [[nodiscard]] const float* row(std::int64_t b, std::int64_t h, std::int64_t r) const {
    return values.data() + ((b * heads + h) * rows + r) * head_dim;
  }
};

struct RowResult {
  std::vector<double> o;
  double lse;
};

/// Attention of one query over keys [0, keys) of a head, in fp64.
inline RowResult reference_row(const float* q, const HostTensor& k, const HostTensor& v, std::int64_t batch,
                               std::int64_t kv_head, std::int64_t keys) {
  const std::int64_t d = k.head_dim;
  const double scale = 1 / std::sqrt(static_cast<double>(d));
  std::vector<double> scores(static_cast<std::size_t>(keys));
  double top = -std::numeric_limits<double>::infinity();
  for (std::int64_t j = 0; j < keys; ++j) {
    double s = 0;
    for (std::int64_t c = 0; c < d; ++c) s += static_cast<double>(q[c]) * k.row(batch, kv_head, j)[c];
    scores[static_cast<std::size_t>(j)] = s * scale;
    top = std::max(top, s * scale);
  }
  RowResult result{std::vector<double>(static_cast<std::size_t>(d), 0.0), top};
  if (keys == 0) return result;
  double sum = 0;
  for (std::int64_t j = 0; j < keys; ++j) {
    const double p = std::exp(scores[static_cast<std::size_t>(j)] - top);
    sum += p;
    for (std::int64_t c = 0; c < d; ++c) result.o[static_cast<std::size_t>(c)] += p * v.row(batch, kv_head, j)[c];
  }
  for (double& value : result.o) value /= sum;
  result.lse = top + std::log(sum);
  return result;
}

/// A CPU context with an allocator of its own.
struct CpuContext {
  CachingAllocator allocator{Device::cpu()};
  Context context{StreamView{Device::cpu(), nullptr}, &allocator};
};

}  // namespace warpmeter::attention::serving_test
