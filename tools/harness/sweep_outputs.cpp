#include "tools/harness/sweep_outputs.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>

#include <fmt/core.h>
#include <unistd.h>

#include "reports/write_all.hpp"
#include "tools/harness/usage_error.hpp"

namespace warpmeter::harness {

int write_all(int fd, std::string_view text) noexcept {
  return reports::write_all(fd, text);
}

bool print_text(std::string_view text, ProgressConsole& console) {
  const int error = write_all(STDOUT_FILENO, text);
  if (error != 0 && error != EPIPE) console.line(fmt::format("stdout cannot be written: {}", std::strerror(error)));
  return error == 0;
}

SweepOutputs::SweepOutputs(const Settings& settings, const reports::WriterOptions& options, ProgressConsole& console)
    : console_(console), writer_(reports::make_writer(settings.format, options)) {
  for (const std::string& path : settings.outputs) {
    try {
      files_.push_back({reports::OutputFile(path, options)});
    } catch (const std::runtime_error& e) {
      // "cannot write 'x.json': No such file or directory": the value is said already.
      std::string_view problem = e.what();
      const std::string prefix = fmt::format("cannot write '{}': ", path);
      if (problem.starts_with(prefix)) problem.remove_prefix(prefix.size());
      throw UsageError("--output", path, fmt::format("cannot be written: {}", problem),
                       "a file in a folder that can be written to, ending in .md, .json, .jsonl or .csv");
    }
  }
}

void SweepOutputs::print(std::string_view text) {
  if (!stdout_open_ || text.empty()) return;
  console_.clear_status();
  const int error = write_all(STDOUT_FILENO, text);
  if (error == 0) return;
  stdout_open_ = false;
  console_.warning(error == EPIPE ? std::string("stdout was closed by its reader: nothing more is printed")
                                  : fmt::format("stdout cannot be written: {}", std::strerror(error)));
}

void SweepOutputs::rewrite(const reports::Document& document, bool last) {
  for (File& output : files_) {
    try {
      last ? output.file.finish(document) : output.file.rewrite(document);
      output.current = true;
    } catch (const std::exception& e) {
      output.current = false;
      if (!output.warned) {
        console_.warning(fmt::format("{}; it keeps what it had, and the rows go on to stdout", one_line(e.what())));
      }
      output.warned = true;
    }
  }
}

void SweepOutputs::begin(const reports::Document& document) {
  std::ostringstream text;
  writer_->begin(document, text);
  print(text.view());
}

void SweepOutputs::row(const reports::Document& document, bool rewrite_files) {
  std::ostringstream text;
  writer_->row(document, document.rows.back(), text);
  print(text.view());
  if (rewrite_files) rewrite(document, false);
}

void SweepOutputs::end(const reports::Document& document) {
  std::ostringstream text;
  writer_->end(document, text);
  print(text.view());
  rewrite(document, true);
}

bool SweepOutputs::useful() const {
  return stdout_open_ || std::any_of(files_.begin(), files_.end(), [](const File& f) { return f.current; });
}

bool SweepOutputs::failed() const {
  return !stdout_open_ || std::any_of(files_.begin(), files_.end(), [](const File& f) { return !f.current; });
}

}  // namespace warpmeter::harness
