#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "reports/output_file.hpp"
#include "reports/writer.hpp"
#include "tools/harness/progress_console.hpp"
#include "tools/harness/settings.hpp"

namespace warpmeter::harness {

/// Where a sweep's rows go: stdout in the format asked for, row by row, and every -o file, rewritten whole after every
/// row. A place that stops taking data (disk full, `| head`) is warned about once and does not stop the others.
class SweepOutputs {
 public:
  /// Opens the files. Throws UsageError for one that could not be written.
  SweepOutputs(const Settings& settings, const reports::WriterOptions& options, ProgressConsole& console);

  void begin(const reports::Document& document);
  /// The document's last row is new. `rewrite` false leaves the files for later: many rows come at once.
  void row(const reports::Document& document, bool rewrite = true);
  void end(const reports::Document& document);

  /// False when nobody would see another row: stdout is gone and no file can be written.
  [[nodiscard]] bool useful() const;
  /// Something that was measured is missing somewhere.
  [[nodiscard]] bool failed() const;

 private:
  struct File {
    reports::OutputFile file;
    bool warned = false;  ///< once is enough
    bool current = true;  ///< the last rewrite worked; tried again after every row, for space may be made
  };
  void print(std::string_view text);
  void rewrite(const reports::Document& document, bool last);

  ProgressConsole& console_;
  std::unique_ptr<reports::Writer> writer_;
  std::vector<File> files_;
  bool stdout_open_ = true;
};

/// Writes all of `text` to a file descriptor; returns 0 or errno (EPIPE needs SIGPIPE ignored).
[[nodiscard]] int write_all(int fd, std::string_view text) noexcept;

/// Writes what was asked for to stdout. Where that fails it says why, unless the reader left (`| head`), and returns
/// false.
[[nodiscard]] bool print_text(std::string_view text, ProgressConsole& console);

}  // namespace warpmeter::harness
