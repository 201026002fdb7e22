#pragma once

#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reports/model.hpp"

namespace warpmeter::reports {

enum class Format : std::uint8_t { md, json, jsonl, csv };
[[nodiscard]] std::string_view name(Format format) noexcept;
[[nodiscard]] std::optional<Format> parse_format(std::string_view text) noexcept;
/// By a file name's ending: .md, .json, .jsonl, .csv.
[[nodiscard]] std::optional<Format> format_of_path(std::string_view path) noexcept;

/// How a tool's rows look as a table. A column that no row has is left out; a null is an empty cell. Columns name the
/// fields of a flat row; status, reason and rerun are fields like any other.
struct TableLayout {
  std::vector<std::string> group_by = {};      ///< one Markdown table for each combination, titled by it
  std::vector<std::string> columns = {};       ///< shown by default, in order
  std::vector<std::string> wide_columns = {};  ///< appended with --wide
  /// Markdown's heading of a column where it is not the field's name: ("fwd_s", "Forward (s)").
  std::vector<std::pair<std::string, std::string>> headings = {};
};

struct WriterOptions {
  TableLayout layout = {};
  bool wide = false;
  /// --columns: exactly these instead of the layout's. One that is in group_by no longer splits the Markdown tables.
  std::vector<std::string> columns = {};
  bool samples = false;  ///< keep `*_samples_*` arrays in JSON
};

/// Every name that --columns accepts, each once: row_keys, the layout's, status, reason, rerun.
[[nodiscard]] std::vector<std::string> column_names(const TableLayout& layout,
                                                    const std::vector<std::string>& row_keys);

/// The layout with the columns added that it takes to tell all the configurations of a sweep apart: with several
/// batches of one shape, `batch` after the other configuration columns. The fewest, first in row_keys' order.
[[nodiscard]] TableLayout tell_apart(TableLayout layout, const std::vector<std::string>& row_keys,
                                     const std::vector<Object>& configurations);

/// Writes a document in one format. Streaming: begin(), row() for each as it is measured, end(); what cannot be
/// streamed (JSON) is written in end(). A document written in one go gives the same bytes. Whole lines are flushed.
///
/// JSON       the document; one row a line.
/// JSON lines {"type": "header", all but rows and summary}, {"type": "row", ...} each, {"type": "summary", ...}.
/// CSV        the header cannot wait for the rows, so it is the layout's: group_by, columns, status, reason; with
///            `wide` row_keys, columns, wide_columns, status, reason, rerun; exactly `columns` where given. Values in
///            full, null is nothing, an empty string is "", lines end in LF.
/// Markdown   a table for each combination of group_by, rounded for reading, columns aligned; then why rows are not ok;
///            then what was measured where. A table opens at its first ok row, which settles its columns; a later row
///            that has more of the layout's columns opens another, "(continued)".
///
/// Throws std::logic_error where a row breaks its contract: a name twice in the flat row, a configuration field that
/// is not in row_keys, a figure that is.
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
