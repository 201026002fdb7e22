#include "kernels/attention/problem.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/runtime/check.hpp"

namespace warpmeter::attention {

namespace {

constexpr std::int64_t kMaxHeadDim = 256;
constexpr std::int64_t kMaxLength = std::int64_t{1} << 31;
constexpr double kMaxElements = 0x1p60;  // of one operand or one score matrix: byte counts stay inside 63 bits

Operand operand(const Tensor& tensor, bool heads_first) {
  WM_CHECK(tensor.shape().size() == 4, "an attention operand has four dimensions");
  const auto shape = tensor.shape();
  const std::int64_t batch_stride = shape[1] * shape[2] * shape[3];
  if (heads_first) return {tensor.data(), batch_stride, shape[2] * shape[3], shape[3]};
  return {tensor.data(), batch_stride, shape[3], shape[2] * shape[3]};
}

double element_bytes(const AttentionProblem& problem) {
  return static_cast<double>(size_of(problem.dtype));
}

}  // namespace

double AttentionProblem::scale() const {
  return 1.0 / std::sqrt(static_cast<double>(head_dim));
}

std::int64_t AttentionProblem::visible_keys(std::int64_t row) const {
  if (!causal) return kv_len;
  return std::clamp<std::int64_t>(row + 1 + kv_len - seq_len, 0, kv_len);
}

std::int64_t AttentionProblem::unseeing_queries() const {
  return causal ? std::max<std::int64_t>(seq_len - kv_len, 0) : 0;
}

std::int64_t AttentionProblem::visible_pairs() const {
  if (!causal) return seq_len * kv_len;
  // Rows see first, first + 1, ..., kv_len keys; with more queries than keys the leading rows see none.
  if (seq_len <= kv_len) return seq_len * (kv_len - seq_len) + seq_len * (seq_len + 1) / 2;
  return kv_len * (kv_len + 1) / 2;
}

double AttentionProblem::forward_flops() const {
  return 4.0 * static_cast<double>(batch) * static_cast<double>(num_heads) * static_cast<double>(visible_pairs()) *
         static_cast<double>(head_dim);
}

double AttentionProblem::backward_flops() const {
  return 2.5 * forward_flops();
}

double AttentionProblem::forward_bytes() const {
  const auto queries = static_cast<double>(query_elements()), keys = static_cast<double>(kv_elements());
  return (2 * queries + 2 * keys) * element_bytes(*this) + 4.0 * static_cast<double>(lse_elements());
}

double AttentionProblem::backward_bytes() const {
  const auto queries = static_cast<double>(query_elements()), keys = static_cast<double>(kv_elements());
  return (4 * queries + 4 * keys) * element_bytes(*this) + 4.0 * static_cast<double>(lse_elements());
}

std::string invalid_reason(const AttentionProblem& problem) {
  struct Field {
    const char* name;
    std::int64_t value, limit;
  };
  const Field fields[] = {{"batch", problem.batch, kMaxLength},
                          {"num_heads", problem.num_heads, kMaxLength},
                          {"num_kv_heads", problem.num_kv_heads, kMaxLength},
                          {"seq_len", problem.seq_len, kMaxLength},
                          {"kv_len", problem.kv_len, kMaxLength},
                          {"head_dim", problem.head_dim, kMaxHeadDim}};
  for (const Field& field : fields) {
    if (field.value < 1 || field.value > field.limit) {
      return std::string(field.name) + " must be between 1 and " + std::to_string(field.limit) + ", not " +
             std::to_string(field.value);
    }
  }
  if (problem.num_heads % problem.num_kv_heads != 0) {
    return "num_kv_heads (" + std::to_string(problem.num_kv_heads) + ") must divide num_heads (" +
           std::to_string(problem.num_heads) + ")";
  }
  switch (problem.dtype) {
    case DType::fp32:
    case DType::tf32:
    case DType::bf16:
    case DType::fp16:
      break;
    default:
      return "dtype must be fp32, tf32, bf16 or fp16, not " + std::string(name(problem.dtype));
  }
  const double heads = static_cast<double>(problem.batch) * static_cast<double>(problem.num_heads);
  const double widest = static_cast<double>(std::max(problem.head_dim, problem.kv_len));
  const double longest = static_cast<double>(std::max(problem.seq_len, problem.kv_len));
  if (heads * longest * widest > kMaxElements) return "batch x num_heads x seq_len x kv_len is too large to count";
  return "";
}

std::string describe(const AttentionProblem& problem) {
  std::string text;
  const auto add = [&](std::string_view word, std::int64_t value) { text.append(word).append(std::to_string(value)); };
  add("b", problem.batch);
  add(" h", problem.num_heads);
  add("/", problem.num_kv_heads);
  add(" s", problem.seq_len);
  add("/", problem.kv_len);
  add(" d", problem.head_dim);
  text.append(" ").append(name(problem.dtype));
  if (problem.causal) text += " causal";
  if (problem.deterministic) text += " deterministic";
  return text;
}

Operand operand_bhsd(const Tensor& tensor) {
  return operand(tensor, true);
}
Operand operand_bshd(const Tensor& tensor) {
  return operand(tensor, false);
}

}  // namespace warpmeter::attention
