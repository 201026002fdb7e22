#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "kernels/runtime/dtype.hpp"
#include "kernels/runtime/tensor.hpp"

namespace warpmeter::attention {

/// Scaled dot-product attention of one shape:
///
///     S = scale * Q K^T + mask,  P = softmax(S) by rows,  O = P V,  LSE_i = ln(sum_j exp(S_ij))
///
/// Q, O: (batch, num_heads, seq_len, head_dim); K, V: (batch, num_kv_heads, kv_len, head_dim). Query head h reads
/// key/value head h / (num_heads / num_kv_heads). The causal mask is bottom-right aligned: query i sees key j when
/// j <= i + kv_len - seq_len. A query that sees nothing has O = 0, LSE = -inf and zero gradients, whatever K and V
/// hold. (In the other rows a hidden key has weight 0, and an infinity or NaN in its V makes 0 * inf of it, as
/// everywhere.)
struct AttentionProblem {
  std::int64_t batch = 1;
  std::int64_t num_heads = 1;
  std::int64_t num_kv_heads = 1;
  std::int64_t seq_len = 1;  ///< Sq, queries
  std::int64_t kv_len = 1;   ///< Sk, keys
  std::int64_t head_dim = 64;
  DType dtype = DType::fp32;  ///< fp32, tf32, bf16 or fp16
  bool causal = true;
  bool deterministic = false;  ///< the backward must give the same bits on every run

  [[nodiscard]] double scale() const;  ///< 1 / sqrt(head_dim)
  [[nodiscard]] std::int64_t group_size() const { return num_heads / num_kv_heads; }

  /// Keys that query `row` sees: [0, visible_keys(row)).
  [[nodiscard]] std::int64_t visible_keys(std::int64_t row) const;
  /// Queries [0, n) see nothing: where there are more queries than keys under the causal mask.
  [[nodiscard]] std::int64_t unseeing_queries() const;
  /// Visible (query, key) pairs of one head. Exact for any lengths up to 2^31.
  [[nodiscard]] std::int64_t visible_pairs() const;

  /// 4 * batch * num_heads * pairs * head_dim: two products of 2 FLOPs a multiply-add (FlashAttention's convention).
  [[nodiscard]] double forward_flops() const;
  /// 2.5 x forward: five products where the forward has two.
  [[nodiscard]] double backward_flops() const;
  /// Each of q, k, v read once, o and lse written once.
  [[nodiscard]] double forward_bytes() const;
  /// q, k, v, o, do, lse read once, dq, dk, dv written once.
  [[nodiscard]] double backward_bytes() const;

  [[nodiscard]] std::int64_t query_elements() const { return batch * num_heads * seq_len * head_dim; }
  [[nodiscard]] std::int64_t kv_elements() const { return batch * num_kv_heads * kv_len * head_dim; }
  [[nodiscard]] std::int64_t lse_elements() const { return batch * num_heads * seq_len; }

  friend bool operator==(const AttentionProblem&, const AttentionProblem&) = default;
};

/// "" when every field is in range, else what is wrong with which: the problem as a whole is refused, not clamped.
[[nodiscard]] std::string invalid_reason(const AttentionProblem& problem);

/// "b8 h1/1 s1024/1024 d64 fp32 causal": for messages.
[[nodiscard]] std::string describe(const AttentionProblem& problem);

/// A 4-D operand (batch, heads, rows, head_dim), head_dim contiguous; strides in elements, 64-bit.
template <class Pointer>
struct BasicOperand {
  Pointer data = nullptr;
  std::int64_t batch_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t row_stride = 0;

  template <class T>
  [[nodiscard]] auto* row(std::int64_t batch, std::int64_t head, std::int64_t row) const {
    using Element = std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const T, T>;
    return static_cast<Element*>(data) + batch * batch_stride + head * head_stride + row * row_stride;
  }
};
using Operand = BasicOperand<void*>;
using ConstOperand = BasicOperand<const void*>;

/// Operands over a dense tensor of shape (batch, heads, rows, head_dim), or (batch, rows, heads, head_dim).
[[nodiscard]] Operand operand_bhsd(const Tensor& tensor);
[[nodiscard]] Operand operand_bshd(const Tensor& tensor);
[[nodiscard]] inline ConstOperand as_const(const Operand& o) {
  return {o.data, o.batch_stride, o.head_stride, o.row_stride};
}

}  // namespace warpmeter::attention
