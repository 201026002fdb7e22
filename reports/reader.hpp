#pragma once

#include <stdexcept>
#include <string>

#include "reports/model.hpp"

namespace warpmeter::reports {

/// A file that is not a result of this suite, or is damaged: one line that says what is wrong where.
class ReadError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Reads a JSON or JSON-lines result file; a truncated JSON-lines file gives the rows that are whole.
/// Hostile input (wrong types, deep nesting, huge numbers, not UTF-8) gives ReadError, never a crash.
[[nodiscard]] Document read_document(const std::string& path);
[[nodiscard]] Document parse_document(std::string_view text, const std::string& origin);

}  // namespace warpmeter::reports
