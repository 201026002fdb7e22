#pragma once

#include <cstdint>

#include "kernels/runtime/context.hpp"
#include "kernels/runtime/dtype.hpp"

namespace warpmeter::layers {

// Linear layers together with the pass that follows them, in one kernel: the product's results are still in registers.
// Where fuses() says no (CPUs, other GPUs than Hopper, other types, rows that are not whole 16 bytes) the two are an
// operation each: Matmul, then swiglu_forward() or rope(). A fused kernel rounds where those two do, so that results
// differ by the order of the product's sums alone. Weights must not be what the kernel before in the stream writes:
// they are loaded while that one ends.

/// gate = x W_gate^T, up = x W_up^T, out = silu(gate) * up. x (rows, in) and the weights (width, in) are dense and of
/// one 16-bit type; the weights lie one behind the other.
struct SwigluLinear {
  std::int64_t rows = 0, in = 0, width = 0;
  DType dtype = DType::bf16;
  const void *x = nullptr, *weights = nullptr;
  void* gate_up = nullptr;  ///< (rows, 2 width), gate first, or null: not wanted
  void* out = nullptr;      ///< (rows, width), dense, or null

  [[nodiscard]] double flops() const {
    return 4.0 * static_cast<double>(rows) * static_cast<double>(in) * static_cast<double>(width);
  }
  [[nodiscard]] double bytes() const {
    const auto product = [](std::int64_t a, std::int64_t b) { return static_cast<double>(a) * static_cast<double>(b); };
    return 2.0 * (product(rows, in) + 2 * product(width, in) +
                  product(rows, width) * ((gate_up ? 2.0 : 0.0) + (out ? 1.0 : 0.0)));
  }
};
[[nodiscard]] bool fuses(Device device, const SwigluLinear& arguments);
/// Only where fuses(). Throws DeviceError.
void swiglu_linear(const Context& context, const SwigluLinear& arguments);

/// qkv = x W^T with Q and K, the first two thirds of a row, turned as rope() turns them. x (rows, d_model), weight
/// (3 d_model, d_model) and qkv (rows, 3 d_model) are dense and of one 16-bit type; d_model = heads * head_dim.
struct RopeLinear {
  std::int64_t rows = 0;  ///< batch * seq_len
  std::int64_t seq_len = 0, heads = 0, head_dim = 0;
  DType dtype = DType::bf16;
  const float* table = nullptr;  ///< as RopeArguments'
  const void *x = nullptr, *weight = nullptr;
  void* qkv = nullptr;

  [[nodiscard]] double flops() const {
    const auto width = static_cast<double>(heads * head_dim);
    return 6.0 * static_cast<double>(rows) * width * width;
  }
  [[nodiscard]] double bytes() const {
    const auto width = static_cast<double>(heads * head_dim);
    return 2.0 * (4.0 * static_cast<double>(rows) * width + 3.0 * width * width);
  }
};
[[nodiscard]] bool fuses(Device device, const RopeLinear& arguments);
void rope_linear(const Context& context, const RopeLinear& arguments);

}  // namespace warpmeter::layers
