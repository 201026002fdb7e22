#pragma once

#include <memory>
#include <string>
#include <vector>

#include "reports/model.hpp"
#include "tools/harness/option_table.hpp"
#include "tools/harness/sweep.hpp"

namespace warpmeter::harness {

/// The row of a case before it runs: configuration, rerun line, status not_run.
[[nodiscard]] reports::Row planned_row(const Case& a_case, const OptionTable& table, const std::string& program);

/// Predicted FLOPs over all phases: the sum of the details that end in _flops.
[[nodiscard]] double predicted_flops(const Prediction& prediction);

/// What --dry-run shows: every configuration with its prediction; skipped ("dry run"), unsupported, or oom where the
/// memory guard would not try it. Measures nothing.
[[nodiscard]] reports::Document dry_run(Session& session, const OptionTable& table, const std::string& program,
                                        const std::vector<std::unique_ptr<Case>>& cases, reports::Document document);

/// "naive fp32 seq_len=1024": a row in a few words, by the fields that differ within the sweep.
[[nodiscard]] std::vector<std::string> labels(const std::vector<reports::Row>& rows);

}  // namespace warpmeter::harness
