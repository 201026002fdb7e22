#pragma once

#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reports/model.hpp"

namespace warpmeter::reports {

enum class Format : std::uint8_t { md, json, jsonl, csv };
[[nodiscard]] std::string_view name(Format format) noexcept;
[[nodiscard]] std::optional<Format> parse_format(std::string_view text) noexcept;
/// By a file name's ending: .md, .json, .jsonl, .csv.
[[nodiscard]] std::optional<Format> format_of_path(std::string_view path) noexcept;

/// How a tool's rows look as a table. A column that no row has is left out; a null is an empty cell.
struct TableLayout {
  std::vector<std::string> group_by;      ///< one Markdown table for each combination, titled by it
  std::vector<std::string> columns;       ///< shown by default, in order
  std::vector<std::string> wide_columns;  ///< appended with --wide
};

struct WriterOptions {
  TableLayout layout;
  bool wide = false;
  std::vector<std::string> columns;  ///< --columns: exactly these instead of the layout's
  bool samples = false;              ///< keep `*_samples_*` arrays in JSON
};

/// Writes a document in one format. Streaming: begin(), row() for each as it is measured, end(); what cannot be
/// streamed (JSON) is written in end(). A document written in one go gives the same bytes.
class Writer {
 public:
  virtual ~Writer() = default;
  virtual void begin(const Document& document, std::ostream& out) = 0;
  virtual void row(const Document& document, const Row& row, std::ostream& out) = 0;
  virtual void end(const Document& document, std::ostream& out) = 0;
};

[[nodiscard]] std::unique_ptr<Writer> make_writer(Format format, WriterOptions options);

/// begin, every row, end.
void write_document(const Document& document, Format format, const WriterOptions& options, std::ostream& out);

/// One row as the JSON object that files have: what an isolated child sends its parent.
[[nodiscard]] std::string row_to_json(const Row& row, bool samples);
/// The inverse; `row_keys` says which fields are the configuration. Throws ReadError.
[[nodiscard]] Row row_from_json(std::string_view text, const std::vector<std::string>& row_keys);

}  // namespace warpmeter::reports
