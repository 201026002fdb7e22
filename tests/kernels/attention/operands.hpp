#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/attention/verify.hpp"
#include "tests/kernels/attention/conformance.hpp"

/// Operands for the conformance suite: inputs with NaN wherever nothing valid lies, outputs poisoned and guarded.
namespace warpmeter::attention::conformance {

/// Where the elements of one operand lie in a block of memory; nothing else in the block is valid.
struct Placement {
  std::int64_t batch, heads, rows, columns;
  std::int64_t batch_stride, head_stride, row_stride;
  std::int64_t elements;  ///< of the block, guards included

  static constexpr std::int64_t kGuard = 64;  ///< elements before and behind

  Placement(Layout layout, std::int64_t batch, std::int64_t heads, std::int64_t rows, std::int64_t columns);
  [[nodiscard]] Operand operand(void* block, std::size_t element_bytes) const;
  template <class Body>
  void for_rows(Body body) const {  ///< body(offset of the row in the block)
    for (std::int64_t b = 0; b < batch; ++b) {
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t r = 0; r < rows; ++r) body(kGuard + b * batch_stride + h * head_stride + r * row_stride);
      }
    }
  }
};

/// `count` standard normal floats in host memory that lives as long as the tensor.
[[nodiscard]] Tensor normal_values(std::int64_t count, std::uint64_t stream_id);

/// The outputs of a run, in host memory.
class HostCopies {
 public:
  [[nodiscard]] HostOutputs outputs() const;
  /// Row `row` of o, lse or dq (0, 1, 2) of a head, as floats.
  [[nodiscard]] std::vector<float> query_row(int output, std::int64_t batch, std::int64_t head, std::int64_t row) const;
  /// The output around whose elements something was written, "" when none.
  [[nodiscard]] std::string overwritten() const;
  /// The first output whose bytes differ, "" when none; o and lse alone when `forward_only`.
  [[nodiscard]] std::string difference(const HostCopies& other, bool forward_only = false) const;

 private:
  friend class Operands;
  struct Output {
    std::string name;
    Placement placement;
    Tensor block;
  };
  std::vector<Output> outputs_;  // o, lse, dq, dk, dv
};

/// Inputs and outputs of one case on the subject's device.
class Operands {
 public:
  Operands(const Subject& subject, const Case& c);

  [[nodiscard]] std::unique_ptr<Saved> forward(bool for_backward);
  void backward(const Saved* saved);
  /// Poisons the outputs and runs both.
  void execute();
  void poison_outputs();
  [[nodiscard]] HostCopies outputs() const;
  [[nodiscard]] Verifier verifier(double work_budget) const;

 private:
  struct Block {
    std::string name;
    Placement placement;
    Tensor host, device;  // host of inputs only
    [[nodiscard]] Operand operand() const { return placement.operand(device.data(), size_of(device.dtype())); }
  };
  [[nodiscard]] Block input(const std::string& name, std::int64_t heads, std::int64_t rows, std::uint64_t stream_id);
  [[nodiscard]] Block output(const std::string& name, std::int64_t heads, std::int64_t rows);
  [[nodiscard]] float* lse() const;

  const Subject& subject_;
  Case case_;
  Block q_, k_, v_, d_o_, o_, lse_, dq_, dk_, dv_;
};

}  // namespace warpmeter::attention::conformance
