#pragma once

#include <cstdint>
#include <vector>

#include "kernels/primer/kernel.hpp"
#include "kernels/runtime/tensor.hpp"

namespace warpmeter::primer {

/// The memory of one problem: operands filled as the kernel says, results, scratch memory.
struct Operands {
  std::vector<Tensor> in, out;
  Buffer workspace;

  [[nodiscard]] Arguments arguments() const;
  /// Sets every byte of the results to 0xFF, NaN in every floating type.
  void poison(StreamView stream) const;
};

/// Allocates and fills. Values are a function of the seed, the operand's number and the element alone, the same on
/// every device. Throws OutOfMemory.
[[nodiscard]] Operands make_operands(const Context& context, const Kernel& kernel, const Problem& problem,
                                     std::uint64_t seed);

/// Bytes that make_operands allocates, as the allocator counts them.
[[nodiscard]] std::size_t operand_bytes(const Kernel& kernel, const Problem& problem, Device device);

/// Host copies of tensors, outside any allocator. Waits for the stream.
class HostCopies {
 public:
  HostCopies(const std::vector<Tensor>& tensors, const TensorSpecs& specs, StreamView stream);
  [[nodiscard]] const HostTensors& tensors() const { return tensors_; }

 private:
  std::vector<std::vector<std::byte>> bytes_;
  HostTensors tensors_;
};

}  // namespace warpmeter::primer
