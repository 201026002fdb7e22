#pragma once

#include <memory>
#include <string>

#include "reports/writer.hpp"

namespace warpmeter::reports {

/// A result file that always holds a whole document: opened before anything is measured, rewritten (written beside,
/// flushed to the disk, renamed) after every row, so that a reader or a crash never sees half of one. A symbolic link
/// is followed and stays one; the file keeps its permissions and, where allowed, its owner. Where the folder cannot
/// take a second file but the file itself can be written, it is rewritten in place.
///
/// What cannot be renamed over (pipes, devices, everything under /dev and /proc) is a stream: rows are appended as they
/// come, in the format's streaming form, and finish() closes the document (JSON is written there as a whole). The
/// format is by the ending; a stream without a known one gets JSON lines.
class OutputFile {
 public:
  /// Throws std::runtime_error ("cannot write 'x.json': No such file or directory") when it could not be written
  /// later: the folder is missing or not writable, nobody reads the pipe, the ending is not a known format. Leaves an
  /// existing file alone and creates none.
  OutputFile(std::string path, WriterOptions options);
  ~OutputFile();
  OutputFile(OutputFile&&) noexcept;
  OutputFile& operator=(OutputFile&&) noexcept;

  /// Throws std::runtime_error (disk full, ...); the previous contents stay.
  void rewrite(const Document& document);
  /// The last rewrite, with the summary: required once for streams, the same as rewrite() for files. Throws as it does.
  void finish(const Document& document);
  [[nodiscard]] const std::string& path() const noexcept;
  [[nodiscard]] Format format() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace warpmeter::reports
