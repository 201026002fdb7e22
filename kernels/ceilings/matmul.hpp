#pragma once

#include <cstdint>
#include <memory>

#include "kernels/ceilings/workload.hpp"
#include "kernels/runtime/compute_path.hpp"
#include "kernels/runtime/context.hpp"
#include "kernels/runtime/dtype.hpp"

namespace warpmeter::ceilings {

/// C = A B of square n x n matrices of random normal values: 2 n^3 FLOPs.
///
/// CPU: fp32 by OpenBLAS, as single-threaded calls on a grid of blocks, by all threads; the variants are block sizes.
/// All paths are that one, since the CPU's kernels multiply in fp32 whatever the storage: see measured_path().
/// CUDA: cuBLASLt with fp32 accumulation; fp32 (no TF32), tf32 (fp32 in memory) or bf16 (path half, bf16 in memory).
/// The variants are the library's first choices for two layouts of the operands.
class MatmulWorkload : public Workload {
 public:
  [[nodiscard]] double amount() const override {
    const auto size = static_cast<double>(n());
    return 2 * size * size * size;
  }
  [[nodiscard]] virtual std::int64_t n() const = 0;
  [[nodiscard]] virtual DType storage() const = 0;

  /// Where an operand's element (row, column) is: data[row * row_stride + column * column_stride].
  struct Operand {
    void* data;
    std::int64_t row_stride, column_stride;
  };
  struct Operands {
    Operand a, b, c;
  };
  [[nodiscard]] virtual Operands operands(int variant) const = 0;
};

/// The path whose rate stands for `path` on a device: itself on CUDA, with tf32 for tf32x3; fp32 on the CPU. A CPU
/// kernel with a 16-bit path of its own would get its matmul here.
[[nodiscard]] ComputePath measured_path(ComputePath path, Device device) noexcept;

/// `path` is a measured_path. n 0: a size that fills the device, bounded by an eighth of its memory. Throws
/// OutOfMemory, DeviceError.
[[nodiscard]] std::unique_ptr<MatmulWorkload> make_matmul(const Context& context, ComputePath path, std::int64_t n = 0);

}  // namespace warpmeter::ceilings
