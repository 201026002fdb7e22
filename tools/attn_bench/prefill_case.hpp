#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/attention/implementation.hpp"
#include "kernels/attention/streaming_attention.hpp"
#include "reports/writer.hpp"
#include "tools/attn_bench/serving_shape.hpp"
#include "tools/harness/option_table.hpp"
#include "tools/harness/settings.hpp"
#include "tools/harness/sweep.hpp"

namespace warpmeter::attn_bench {

/// One row of --mode prefill to be: a prompt worked through at once, and in chunks beside it.
struct PrefillConfiguration : ServingShape {
  std::int64_t seq_len = 1;
  std::int64_t chunk = 1;
  bool projections = true;  ///< q, k, v and out, as a layer has them; else attention alone

  /// The whole prompt's attention.
  [[nodiscard]] attention::AttentionProblem problem() const { return attention_of(seq_len, seq_len); }
  [[nodiscard]] attention::KvCacheConfig cache() const { return cache_of(seq_len); }
};

/// The cross product of the options' lists. Throws UsageError.
[[nodiscard]] std::vector<PrefillConfiguration> expand_prefill(const harness::OptionTable& table,
                                                               const harness::Settings& settings);

[[nodiscard]] std::vector<std::string> prefill_row_keys();
[[nodiscard]] reports::TableLayout prefill_layout();

/// Measures the chunked prefill, then the one-shot one, each with its own peak of memory, and compares their outputs.
/// Where the one-shot does not fit its figures are null and `oneshot` says so; the row is ok.
class PrefillCase : public harness::Case {
 public:
  PrefillCase(PrefillConfiguration configuration, Device device);

  [[nodiscard]] reports::Object configuration() const override;
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> option_values() const override;
  [[nodiscard]] std::optional<std::string> unsupported() const override;
  [[nodiscard]] harness::Prediction predict() const override;
  void run(harness::Session& session, reports::Row& row) override;

 private:
  /// Most allocated at once when the prompt comes in pieces of `chunk`.
  [[nodiscard]] std::size_t peak_bytes(std::int64_t chunk) const;
  [[nodiscard]] double flops() const;
  [[nodiscard]] double bytes() const;

  PrefillConfiguration configuration_;
  Device device_;
  const attention::Implementation* implementation_;  ///< null: none of that name
};

}  // namespace warpmeter::attn_bench
