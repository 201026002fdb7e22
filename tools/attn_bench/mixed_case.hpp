#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/attention/implementation.hpp"
#include "kernels/attention/kv_cache.hpp"
#include "kernels/attention/verify.hpp"
#include "reports/writer.hpp"
#include "tools/attn_bench/serving_shape.hpp"
#include "tools/harness/option_table.hpp"
#include "tools/harness/settings.hpp"
#include "tools/harness/sweep.hpp"

namespace warpmeter::attn_bench {

/// One row of --mode mixed to be: `batch` sequences with `kv_len` tokens each decode one token a step, and a chunk of
/// another sequence's prompt of `seq_len` tokens rides along. `impl` flash decodes by flash_decode and prefills by
/// flash; another implementation of attention does both as it is.
struct MixedConfiguration : ServingShape {
  std::int64_t kv_len = 1;
  std::int64_t seq_len = 1;
  std::int64_t chunk = 1;

  [[nodiscard]] bool flash() const { return impl == "flash"; }
  [[nodiscard]] std::int64_t steps() const { return (seq_len + chunk - 1) / chunk; }  ///< of a prompt
  /// The decoding of one step, and the whole prompt, as attention.
  [[nodiscard]] attention::AttentionProblem decode_problem() const { return attention_of(1, kv_len); }
  [[nodiscard]] attention::AttentionProblem prompt_problem() const;
  [[nodiscard]] attention::KvCacheConfig decode_cache() const { return cache_of(kv_len); }
  [[nodiscard]] attention::KvCacheConfig prompt_cache() const;
};

/// The cross product of the options' lists. Throws UsageError.
[[nodiscard]] std::vector<MixedConfiguration> expand_mixed(const harness::OptionTable& table,
                                                           const harness::Settings& settings);
/// --tpot-bound in milliseconds; 0 when not given. Throws UsageError.
[[nodiscard]] double tpot_bound_ms(const harness::OptionTable& table);

[[nodiscard]] std::vector<std::string> mixed_row_keys();
[[nodiscard]] reports::TableLayout mixed_layout();

/// For each implementation and shape the largest chunk whose tpot_p99_ms is within the bound, a line each.
[[nodiscard]] std::vector<std::string> largest_chunks(const std::vector<reports::Row>& rows, double bound_ms);

/// What rows of one shape share: the references of the decoding and of the prompt.
struct MixedShared {
  std::map<std::string, attention::Verifier> verifiers;
};

/// Measures one configuration of --mode mixed: attention alone, without projections. A sample is a step: the batch's
/// decoding and one chunk, the prompt's chunks in turn, whole prompts only (unless --steps says how many), so that the
/// distribution is that of the steps of a prompt. The new keys and values go into the caches before a step's time
/// starts. Before that both results are compared with the fp64 formula.
class MixedCase : public harness::Case {
 public:
  MixedCase(MixedConfiguration configuration, Device device, std::shared_ptr<MixedShared> shared);

  [[nodiscard]] reports::Object configuration() const override;
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> option_values() const override;
  [[nodiscard]] std::optional<std::string> unsupported() const override;
  [[nodiscard]] harness::Prediction predict() const override;
  void run(harness::Session& session, reports::Row& row) override;

 private:
  MixedConfiguration configuration_;
  Device device_;
  const attention::Implementation* implementation_;  ///< null: none of that name
  std::shared_ptr<MixedShared> shared_;
};

}  // namespace warpmeter::attn_bench
