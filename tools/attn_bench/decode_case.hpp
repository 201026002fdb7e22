#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/attention/implementation.hpp"
#include "kernels/attention/verify.hpp"
#include "reports/writer.hpp"
#include "tools/attn_bench/decode_configuration.hpp"
#include "tools/harness/sweep.hpp"

namespace warpmeter::attn_bench {

/// What rows of one problem share: its reference, and naive's time once that has been measured.
struct DecodeShared {
  std::map<std::string, attention::Verifier> verifiers;
  std::map<std::string, double> naive_ms;
};

[[nodiscard]] std::vector<std::string> decode_row_keys();
[[nodiscard]] reports::TableLayout decode_layout();

/// Measures one configuration of --mode decode. The result is compared with the fp64 formula and, of flash_decode, with
/// the other merges' results before its time is taken.
class DecodeCase : public harness::Case {
 public:
  DecodeCase(DecodeConfiguration configuration, Device device, std::shared_ptr<DecodeShared> shared);

  [[nodiscard]] reports::Object configuration() const override;
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> option_values() const override;
  [[nodiscard]] std::optional<std::string> unsupported() const override;
  [[nodiscard]] harness::Prediction predict() const override;
  void run(harness::Session& session, reports::Row& row) override;

 private:
  DecodeConfiguration configuration_;
  Device device_;
  const attention::Implementation* implementation_;  ///< null: reads a cache, or none of that name
  std::shared_ptr<DecodeShared> shared_;
};

}  // namespace warpmeter::attn_bench
