#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/runtime/context.hpp"
#include "kernels/runtime/dtype.hpp"

namespace warpmeter::layers {

/// out[r] = table[tokens[r]] for every row r. Rows are dense; tokens lie in [0, vocab).
struct EmbeddingForward {
  std::int64_t rows = 0, width = 0, vocab = 0;
  DType dtype = DType::fp32;             ///< of table and out: fp32, bf16 or fp16
  const std::int32_t* tokens = nullptr;  ///< (rows)
  const void* table = nullptr;           ///< (vocab, width)
  void* out = nullptr;                   ///< (rows, width)

  [[nodiscard]] double flops() const { return 0; }
  [[nodiscard]] double bytes() const {
    return static_cast<double>(rows) * (4.0 + 2.0 * static_cast<double>(width) * static_cast<double>(size_of(dtype)));
  }
};
void embedding_forward(const Context& context, const EmbeddingForward& arguments);

/// d_table[t] = (accumulate ? d_table[t] : 0) + sum of d_out[r] over the rows r with tokens[r] = t, for every token t
/// of the vocabulary: without accumulate rows that no token names become 0. Sums are fp32, in the order of the rows:
/// the same bits on every run.
struct EmbeddingBackward {
  std::int64_t rows = 0, width = 0, vocab = 0;
  DType dtype = DType::fp32;           ///< of d_out
  DType gradient_dtype = DType::fp32;  ///< of d_table: fp32, or dtype
  bool accumulate = false;
  const std::int32_t* tokens = nullptr;  ///< (rows)
  const void* d_out = nullptr;           ///< (rows, width)
  void* d_table = nullptr;               ///< (vocab, width)
  void* workspace = nullptr;             ///< workspace_bytes() bytes

  [[nodiscard]] double flops() const { return static_cast<double>(rows) * static_cast<double>(width); }
  [[nodiscard]] double bytes() const {
    return static_cast<double>(rows) * (4.0 + static_cast<double>(width) * static_cast<double>(size_of(dtype))) +
           static_cast<double>(vocab) * static_cast<double>(width) * static_cast<double>(size_of(gradient_dtype));
  }
};
[[nodiscard]] std::size_t workspace_bytes(Device device, const EmbeddingBackward& arguments);
void embedding_backward(const Context& context, const EmbeddingBackward& arguments);

}  // namespace warpmeter::layers
