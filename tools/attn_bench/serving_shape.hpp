#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/attention/kv_cache.hpp"
#include "kernels/attention/problem.hpp"
#include "reports/model.hpp"
#include "tools/harness/option_table.hpp"

namespace warpmeter::attn_bench {

/// What the rows of all serving modes have: who computes, how many sequences there are, and how the heads are.
struct ServingShape {
  std::string impl;
  DType dtype = DType::fp32;
  std::int64_t batch = 1;
  std::int64_t num_heads = 1;
  std::int64_t num_kv_heads = 1;
  std::int64_t head_dim = 64;
  std::int64_t page_size = 0;

  [[nodiscard]] std::int64_t d_model() const { return num_heads * head_dim; }
  /// Causal attention of the last `seq_len` of `kv_len` tokens.
  [[nodiscard]] attention::AttentionProblem attention_of(std::int64_t seq_len, std::int64_t kv_len) const;
  /// For `batch` sequences of up to `capacity` tokens.
  [[nodiscard]] attention::KvCacheConfig cache_of(std::int64_t capacity) const;
  /// A row's first fields, and the options that repeat it: what the modes have in common, but for the pages.
  [[nodiscard]] reports::Object fields(std::string_view mode) const;
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> option_values(std::string_view mode) const;
};

/// The cross product of --d-model, --heads or --head-dim, --kv-heads and --batch; the other members as they begin.
/// Throws UsageError.
[[nodiscard]] std::vector<ServingShape> expand_shapes(const harness::OptionTable& table);

}  // namespace warpmeter::attn_bench
