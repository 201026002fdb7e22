#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>

#include "reports/model.hpp"

namespace warpmeter::harness {

/// The rows of an earlier run that stand for this run's own: same tool, schema, device and settings that bear on a
/// figure, and a status that is a result (ok, oom, unsupported, skipped). Failures are run again.
class Resume {
 public:
  /// `now` is this run's document, without rows. With `samples` a measured row must have its raw samples, too.
  Resume(const reports::Document& earlier, const reports::Document& now, bool samples);

  /// The earlier row of this configuration, if it may be taken over. The last one where there are several.
  [[nodiscard]] const reports::Row* find(const reports::Object& configuration) const;
  /// A row of this configuration is there but failed.
  [[nodiscard]] bool failed_before(const reports::Object& configuration) const;
  /// Why no row at all may be taken over ("it was measured on another device, NVIDIA A100"); empty otherwise.
  [[nodiscard]] const std::string& refusal() const noexcept { return refusal_; }

 private:
  std::string refusal_;
  std::map<std::string, reports::Row> rows_;
};

/// Why figures of `earlier` may not stand in `now`; nothing when they may.
[[nodiscard]] std::optional<std::string> difference(const reports::Document& earlier, const reports::Document& now);

}  // namespace warpmeter::harness
