#pragma once

#include <memory>
#include <string>

#include "reports/writer.hpp"

namespace warpmeter::reports {

/// A result file that always holds a whole document: opened before anything is measured, rewritten (written beside,
/// flushed, renamed) after every row, so that a reader or a crash never sees half of one.
class OutputFile {
 public:
  /// Throws std::runtime_error ("cannot write 'x.json': No such file or directory") when it could not be written
  /// later: the folder is missing or not writable, the ending is not a known format. Leaves an existing file alone.
  OutputFile(std::string path, WriterOptions options);
  ~OutputFile();
  OutputFile(OutputFile&&) noexcept;
  OutputFile& operator=(OutputFile&&) noexcept;

  /// Throws std::runtime_error (disk full, ...); the previous contents stay.
  void rewrite(const Document& document);
  [[nodiscard]] const std::string& path() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace warpmeter::reports
