#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/runtime/compute_path.hpp"
#include "kernels/runtime/dtype.hpp"
#include "kernels/runtime/stream.hpp"

/// The primer: small kernels, each complete in one file and laid out alike, that show how a kernel is written, verified
/// and measured in this suite. README, "Adding a kernel", adds one.
namespace warpmeter::primer {

/// Sizes that a kernel may have, each from 1.
enum class Size : std::uint8_t {
  batch,        ///< independent problems
  rows,         ///< of the result
  cols,         ///< of the result
  inner,        ///< what a matrix product sums over
  kernel_size,  ///< of a convolution, both ways
  group_size,   ///< weights that share a scale and an offset
};
inline constexpr int kSizes = 6;

/// "rows": the spelling that options, files and JSON share.
[[nodiscard]] std::string_view name(Size size) noexcept;

/// One problem. Sizes that a kernel does not have are ignored.
struct Problem {
  DType dtype = DType::fp32;  ///< of operands and result; sums are fp32
  std::int64_t batch = 1, rows = 1, cols = 1, inner = 1, kernel_size = 1, group_size = 1;

  [[nodiscard]] std::int64_t size(Size which) const noexcept;
  void set(Size which, std::int64_t value) noexcept;
};

/// What an operand is filled with for measuring and testing.
enum class Fill : std::uint8_t {
  normal,    ///< mean 0, standard deviation 1
  positive,  ///< uniform in [1/16, 1/8)
  bits,      ///< any 32 bits
};

/// A dense row-major operand or result.
struct TensorSpec {
  std::string_view name;
  std::vector<std::int64_t> shape;
  DType dtype;
  Fill fill = Fill::normal;

  [[nodiscard]] std::int64_t elements() const noexcept;
  [[nodiscard]] std::size_t bytes() const noexcept { return static_cast<std::size_t>(elements()) * size_of(dtype); }
};
using TensorSpecs = std::vector<TensorSpec>;

/// An operand on the host, read as fp64: what references work on.
class HostTensor {
 public:
  HostTensor(const void* data, DType dtype) : data_(data), dtype_(dtype) {}
  [[nodiscard]] double operator[](std::int64_t index) const;
  /// Of an int32 tensor: the 4-bit number `index` of those packed in it, eight a word, lowest bits first.
  [[nodiscard]] int nibble(std::int64_t index) const;

 private:
  const void* data_;
  DType dtype_;
};
using HostTensors = std::vector<HostTensor>;

inline constexpr int kMostOperands = 4;

/// Addresses of a call, in the order of the kernel's inputs and outputs. Memory is the allocator's: aligned to 512
/// bytes.
struct Arguments {
  const void* in[kMostOperands] = {};
  void* out[kMostOperands] = {};
  void* workspace = nullptr;

  template <class T>
  [[nodiscard]] const T* input(int index) const {
    return static_cast<const T*>(in[index]);
  }
  template <class T>
  [[nodiscard]] T* output(int index) const {
    return static_cast<T*>(out[index]);
  }
};

/// Which measured rate is the bound of a kernel that memory bounds.
enum class Traffic : std::uint8_t {
  copy,  ///< it writes as much as it reads, or more
  read,  ///< nearly all of it is reading
};

/// A kernel: what its file says of it, and its code for each device.
struct Kernel {
  std::string_view name = {};     ///< set by the registry, as are cpu and cuda
  std::string_view formula;       ///< one line, with the operands' names
  std::string_view layout;        ///< one line: shapes of operands and results
  std::string_view pass = "fwd";  ///< "bwd" for a gradient
  std::vector<Size> sizes;        ///< those that it has
  Problem bench;                  ///< sizes to measure where none are given
  Problem notes;                  ///< sizes of the notes' puzzle
  Traffic traffic = Traffic::copy;
  /// It multiplies matrices: its 16-bit form is held against matrix units, and rounds what it multiplies to 16 bits.
  bool matrix_product = false;

  TensorSpecs (*inputs)(const Problem&) = nullptr;
  TensorSpecs (*outputs)(const Problem&) = nullptr;
  double (*flops)(const Problem&) = nullptr;
  /// Element `index` of output `output` in fp64. Several threads call it.
  double (*reference)(const Problem&, const HostTensors& in, int output, std::int64_t index) = nullptr;
  /// Steps of one reference element, about: large problems are checked in part.
  double (*reference_cost)(const Problem&) = nullptr;  ///< null: 1
  /// Scratch memory of a call. Null: none.
  std::size_t (*workspace_bytes)(const Problem&, Device) = nullptr;
  /// Why these sizes cannot be, or "". Null: all can.
  std::string (*invalid)(const Problem&) = nullptr;

  void (*cpu)(const Problem&, const Arguments&) = nullptr;  ///< on all threads; returns when done
  /// Enqueues, and neither allocates nor waits. Throws DeviceError. Null in a build without CUDA.
  void (*cuda)(const Problem&, const Arguments&, StreamView) = nullptr;

  [[nodiscard]] bool has(Size size) const noexcept;
  /// Least traffic: every operand once, every result once.
  [[nodiscard]] double bytes(const Problem& problem) const;
  [[nodiscard]] ComputePath compute_path(const Problem& problem) const noexcept;
};

/// Scratch memory that only the CPU's part needs: `count` floats.
[[nodiscard]] constexpr std::size_t cpu_floats(Device device, std::int64_t count) noexcept {
  return device.is_cpu() ? static_cast<std::size_t>(count) * sizeof(float) : 0;
}

/// Why a problem is none: sizes below 1 or too many elements to count, or what the kernel itself says; "" otherwise.
[[nodiscard]] std::string invalid_reason(const Kernel& kernel, const Problem& problem);

/// "rows 4096, cols 1024, fp32": the sizes that the kernel has.
[[nodiscard]] std::string describe(const Kernel& kernel, const Problem& problem);

/// Runs it on `stream`'s device. The problem must be valid and its dtype fp32, bf16 or fp16 (WM_CHECK).
void run(const Kernel& kernel, const Problem& problem, const Arguments& arguments, StreamView stream);

}  // namespace warpmeter::primer
