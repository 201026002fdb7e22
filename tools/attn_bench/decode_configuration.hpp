#pragma once

#include <string>
#include <vector>

#include "kernels/attention/decode.hpp"
#include "kernels/attention/problem.hpp"
#include "tools/attn_bench/serving_shape.hpp"
#include "tools/harness/option_table.hpp"
#include "tools/harness/settings.hpp"

namespace warpmeter::attn_bench {

/// One row of --mode decode to be: `impl` is flash_decode, flash_prefill (the tokens are a prompt's chunk) or the name
/// of an implementation of attention, which then runs as it is over the contiguous cache, seq_len its query tokens.
struct DecodeConfiguration : ServingShape {
  std::int64_t kv_len = 1;
  std::int64_t tokens = 1;
  std::int64_t value_range = 0;      ///< 0: normal values, else uniform in +- this
  attention::DecodeOptions options;  ///< of flash_decode, the splits (of keys) of flash_prefill, too

  [[nodiscard]] bool flash_decode() const { return impl == "flash_decode"; }
  [[nodiscard]] bool flash_prefill() const { return impl == "flash_prefill"; }
  [[nodiscard]] bool cached() const { return flash_decode() || flash_prefill(); }  ///< reads a KvCache
  /// The same as whole attention: seq_len = tokens, causal.
  [[nodiscard]] attention::AttentionProblem attention_problem() const { return attention_of(tokens, kv_len); }
  [[nodiscard]] attention::DecodeProblem decode_problem() const { return {num_heads, tokens, dtype}; }
  [[nodiscard]] attention::KvCacheConfig cache() const { return cache_of(kv_len); }
  /// What decides the inputs, and what a result can be compared by.
  [[nodiscard]] std::string problem_key() const;
};

/// The cross product of the options' lists; what flash_decode alone has is swept for it alone. Throws UsageError.
[[nodiscard]] std::vector<DecodeConfiguration> expand_decode(const harness::OptionTable& table,
                                                             const harness::Settings& settings);

}  // namespace warpmeter::attn_bench
