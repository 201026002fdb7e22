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

/// CPU: a matmul whose operands stay in cache: what a kernel that blocks perfectly could reach. Every thread multiplies
/// a tile of its own over and over, random values that fit its innermost cache, with as many sums in registers as there
/// are. fp32 by the instruction set in use; bf16 with fp32 sums (path half) by AMX or AVX512_BF16.
/// amount() is that of all threads, a hundredth of a second of work or so.
class CachedMatmulWorkload : public Workload {
 public:
  /// C = passes * A B: the inner dimension goes `passes` times round the same operands, so that sums are long though
  /// operands are small. A is (rows, depth) row-major, C (rows, columns) fp32 row-major. Element (k, column) of B is
  /// b[((k / b_group) * columns + column) * b_group + k % b_group].
  struct Tile {
    std::int64_t rows, columns, depth, passes;
    DType storage;  ///< of A and B
    std::int64_t b_group;
    void *a, *b;
    float* c;
  };
  [[nodiscard]] virtual int workers() const = 0;
  /// Worker's tile, 0 <= worker < workers(); its C stays as it is in a call where the worker got nothing to do.
  [[nodiscard]] virtual Tile tile(int worker) const = 0;
};

/// The path whose rate stands for `path` on a device. CUDA: itself, with tf32 for tf32x3. CPU: half where this machine
/// multiplies bf16 natively (AVX512_BF16, AMX) and WARPMETER_CPU_ISA does not forbid it; fp32 for all others.
[[nodiscard]] ComputePath measured_path(ComputePath path, Device device) noexcept;

/// `path` is a measured_path; the CPU's half has none. n 0: a size that fills the device, bounded by an eighth of its
/// memory. Throws OutOfMemory, DeviceError.
[[nodiscard]] std::unique_ptr<MatmulWorkload> make_matmul(const Context& context, ComputePath path, std::int64_t n = 0);

/// CPU only; `path` is a measured_path. For the threads that there are now. Throws OutOfMemory.
[[nodiscard]] std::unique_ptr<CachedMatmulWorkload> make_cached_matmul(const Context& context, ComputePath path);

}  // namespace warpmeter::ceilings
