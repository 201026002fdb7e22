#pragma once

#include <cstdint>
#include <vector>

#include "kernels/runtime/context.hpp"
#include "kernels/runtime/dtype.hpp"

namespace warpmeter::layers {

inline constexpr double kRopeTheta = 10000.0;

/// cos and sin of position * theta^(-2 i / head_dim), as (seq_len, head_dim / 2, 2) fp32 rounded from fp64: what
/// RopeArguments::table has on the device.
[[nodiscard]] std::vector<float> rope_table(std::int64_t seq_len, std::int64_t head_dim, double theta = kRopeTheta);

/// Rotates the pairs (2 i, 2 i + 1) of every head of Q and of K (one pass over both; k_in null: Q alone) by the angle
/// of their row's position, row mod seq_len. `inverse` rotates back, which is the backward. Row r of a matrix starts
/// `stride` elements after row r - 1 and holds heads * head_dim contiguous elements. Outputs may be the inputs.
/// Arithmetic is fp32.
/// Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021.
struct RopeArguments {
  std::int64_t rows = 0;  ///< batch * seq_len
  std::int64_t seq_len = 0, heads = 0, head_dim = 0;
  DType dtype = DType::fp32;  ///< fp32, bf16 or fp16
  bool inverse = false;
  const float* table = nullptr;  ///< on the device
  const void *q_in = nullptr, *k_in = nullptr;
  std::int64_t in_stride = 0;  ///< of q_in and k_in, elements
  void *q_out = nullptr, *k_out = nullptr;
  std::int64_t out_stride = 0;

  [[nodiscard]] double elements() const {
    return (k_in ? 2.0 : 1.0) * static_cast<double>(rows) * static_cast<double>(heads * head_dim);
  }
  [[nodiscard]] double flops() const { return 3.0 * elements(); }
  [[nodiscard]] double bytes() const { return 2.0 * elements() * static_cast<double>(size_of(dtype)); }
};
void rope(const Context& context, const RopeArguments& arguments);

}  // namespace warpmeter::layers
