#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "reports/model.hpp"

namespace warpmeter::harness {

/// A row to be run in a process of its own.
struct IsolatedRun {
  std::vector<std::string> command;  ///< program and arguments; "--isolated-child-fd N" is added
  std::optional<double> timeout_s;
  reports::Object ceilings;  ///< known so far: the child need not measure them again
  std::vector<std::string> row_keys;
  std::function<void(const std::string&)> on_warning;
};

/// What came of it.
struct IsolatedResult {
  /// The finished row as the child sent it; or, when it did not come to that, the figures of its finished phases with
  /// status crashed, timeout, interrupted or error and a reason.
  reports::Row row;
  reports::Object ceilings;  ///< those that the child knew at its end
};

/// Starts the child in a process group of its own, with stdout closed to it (/dev/null), waits for its row and ends the
/// group whatever happens. Ctrl-C here is passed on; the child dies with this process. `row` brings configuration and
/// rerun line.
[[nodiscard]] IsolatedResult run_isolated(const IsolatedRun& run, const reports::Row& row);

/// "SIGSEGV (segmentation fault)".
[[nodiscard]] std::string signal_text(int signal);

}  // namespace warpmeter::harness
