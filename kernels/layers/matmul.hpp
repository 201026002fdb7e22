#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "kernels/runtime/context.hpp"
#include "kernels/runtime/dtype.hpp"

namespace warpmeter::layers {

/// C = (accumulate ? C : 0) + op(A) op(B), row-major; op transposes where told. Row strides are in elements.
///
/// A linear layer with weight W (out, in), as PyTorch keeps it: forward y = x W^T (linear_forward()), gradients
/// dx = dy W (linear_input_gradient()) and dW (+)= dy^T x (linear_weight_gradient()).
struct MatmulProblem {
  std::int64_t m = 0, n = 0, k = 0;               ///< C is m x n; k >= 1
  bool transpose_a = false, transpose_b = false;  ///< A is stored k x m; B is stored n x k
  std::int64_t stride_a = 0, stride_b = 0, stride_c = 0;
  DType dtype = DType::fp32;      ///< of A and B, and how they are multiplied: fp32, tf32, bf16 or fp16; sums are fp32
  DType out_dtype = DType::fp32;  ///< of C: fp32, or dtype
  bool accumulate = false;

  [[nodiscard]] double flops() const {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  }
  [[nodiscard]] double bytes() const {
    const auto product = [](std::int64_t a, std::int64_t b) { return static_cast<double>(a) * static_cast<double>(b); };
    return (product(m, k) + product(k, n)) * static_cast<double>(size_of(dtype)) +
           product(m, n) * static_cast<double>(size_of(out_dtype)) * (accumulate ? 2.0 : 1.0);
  }
  friend bool operator==(const MatmulProblem&, const MatmulProblem&) = default;
};

/// x (rows, in), weight (out, in) -> y (rows, out). Strides 0: dense.
[[nodiscard]] MatmulProblem linear_forward(std::int64_t rows, std::int64_t in, std::int64_t out, DType dtype,
                                           DType out_dtype);
/// d_y (rows, out), weight (out, in) -> d_x (rows, in).
[[nodiscard]] MatmulProblem linear_input_gradient(std::int64_t rows, std::int64_t in, std::int64_t out, DType dtype,
                                                  DType out_dtype);
/// d_y (rows, out), x (rows, in) -> d_weight (out, in).
[[nodiscard]] MatmulProblem linear_weight_gradient(std::int64_t rows, std::int64_t in, std::int64_t out, DType dtype,
                                                   DType out_dtype, bool accumulate);

/// Matrix products on one device, all in one stream: what the library needs between calls (handle, workspace, the
/// algorithm chosen for each problem). One for a model; not for several threads at once.
///
/// CUDA: cuBLASLt. The first call of a problem times its heuristics' candidates on the given operands, outside stream
/// capture and with the device to itself, and remembers the fastest (accumulate: the choice of the same problem without
/// it, else the first candidate); a call under capture takes the first candidate when nothing is remembered. fp32
/// products are fp32 throughout. CPU: tiles over parallel_for() to single-threaded BLAS calls; 16-bit operands widened
/// to fp32 tile by tile, sums fp32, rounded once. The same call gives the same bits on every run of a process.
class Matmul {
 public:
  virtual ~Matmul() = default;
  /// Enqueues the product. Throws OutOfMemory, DeviceError.
  virtual void multiply(const MatmulProblem& problem, const void* a, const void* b, void* c) = 0;
  /// What would run, for reports: "openblas", or the algorithm remembered.
  [[nodiscard]] virtual std::string kernel(const MatmulProblem& problem) const = 0;
  /// Another for a second stream of the same device, with a workspace of its own from `context` and everything
  /// remembered in common. This one must outlive it, and all of them belong to one thread. Throws OutOfMemory.
  [[nodiscard]] virtual std::unique_ptr<Matmul> beside(const Context& context) = 0;
};

struct MatmulOptions {
  bool try_candidates = true;  ///< CUDA: time the candidates; else the heuristics' first
  /// CUDA: what gradients' products (no B transposed) are not to count on, as kernels beside a backward take it: a
  /// product with a block for each multiprocessor otherwise waits for theirs to end before its last blocks begin.
  int spare_multiprocessors = 0;
};
/// Bytes that make_matmul() takes from the context's allocator (workspace), before rounding.
[[nodiscard]] std::size_t matmul_workspace_bytes(Device device);
/// The context must outlive it. Throws OutOfMemory, DeviceError.
[[nodiscard]] std::unique_ptr<Matmul> make_matmul(const Context& context, MatmulOptions options = {});

}  // namespace warpmeter::layers
