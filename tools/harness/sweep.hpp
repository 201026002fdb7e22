#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "reports/model.hpp"
#include "tools/harness/session.hpp"

namespace warpmeter::harness {

/// What a configuration will take, known before it runs.
struct Prediction {
  std::size_t peak_bytes = 0;  ///< most allocated at once, over all phases
  /// Most allocated at once up to the end of the first phase: when this fits and peak_bytes does not, the row is still
  /// tried for the figures of its first phases.
  std::size_t first_phase_bytes = 0;
  reports::Object details;  ///< shown by --dry-run: fwd_flops, fwd_bytes, predicted_..._mib
};

/// Thrown by a case when what the later rows would run on is lost, too: its row gets the status and the words, the
/// later ones are not_run.
class RunLost : public std::runtime_error {
 public:
  RunLost(reports::Status status, const std::string& reason) : std::runtime_error(reason), status_(status) {}
  [[nodiscard]] reports::Status status() const noexcept { return status_; }

 private:
  reports::Status status_;
};

/// One configuration of a sweep.
class Case {
 public:
  virtual ~Case() = default;
  /// Fields of the row's configuration, the same names for every case of a tool.
  [[nodiscard]] virtual reports::Object configuration() const = 0;
  /// The row_options' texts that repeat this row: ("--seq-len", "1024").
  [[nodiscard]] virtual std::vector<std::pair<std::string, std::string>> option_values() const = 0;
  /// A reason when this build, device or implementation cannot run it at all.
  [[nodiscard]] virtual std::optional<std::string> unsupported() const { return std::nullopt; }
  [[nodiscard]] virtual Prediction predict() const = 0;
  /// Measures, setting figures as they are obtained; may set status mismatch with a reason. Throws OutOfMemory,
  /// DeviceError, RunLost, Interrupted or any std::exception; the sweep turns those into the row's status. Everything
  /// that it allocated must be given back on every way out. Calls session.checkpoint(row) after each phase, so that its
  /// figures outlive a crash of an isolated process.
  virtual void run(Session& session, reports::Row& row) = 0;
};

/// Runs cases in order and keeps the document, the outputs, stdout and the progress line up to date after each.
///
/// A row's way: --resume's row if it matches; unsupported; predicted not to fit (oom, "predicted ..."); isolated child
/// or in this process. OutOfMemory: oom; a sticky DeviceError: error, and every later row not_run; another exception:
/// error; a check that fails: mismatch, speeds removed. After a row the cache is freed and the allocated bytes must be
/// what they were: else the row is an error that says so.
class Sweep {
 public:
  struct Options {
    std::string program;                    ///< argv[0] for rerun lines: the tool's name
    std::vector<std::string> self_command;  ///< how to start an isolated child: path of this program
    reports::TableLayout layout;
    std::vector<std::string> row_keys;
    std::string greeting;  ///< a line for stderr, said once nothing of the command line can be refused any more
  };
  /// `document` has everything but rows and summary. Throws UsageError for a --resume file that cannot be read.
  /// Session and table must outlive the sweep.
  Sweep(Session& session, const OptionTable& table, Options options, reports::Document document);
  ~Sweep();

  /// Returns the exit status: 0, 1 or 130. Throws UsageError, before anything is measured, for an output that cannot
  /// be written.
  int run(std::vector<std::unique_ptr<Case>> cases);
  [[nodiscard]] const reports::Document& document() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace warpmeter::harness
