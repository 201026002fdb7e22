#include <ostream>

#include "reports/detail/json_text.hpp"
#include "reports/detail/utf8.hpp"
#include "reports/detail/writers.hpp"

namespace warpmeter::reports::detail {
namespace {

std::vector<std::string> csv_columns(const Document& document, const WriterOptions& options) {
  if (!options.columns.empty()) return options.columns;
  const TableLayout& layout = options.layout;
  std::vector<std::string> columns;
  append_new(columns, options.wide || layout.columns.empty() ? document.row_keys : layout.group_by);
  append_new(columns, layout.group_by);
  std::vector<std::string> last = {"status", "reason"};
  if (options.wide) last.emplace_back("rerun");
  const auto without_last = [&](std::vector<std::string> names) {
    for (const std::string& name : last) std::erase(names, name);
    return names;
  };
  append_new(columns, without_last(layout.columns));
  if (options.wide) append_new(columns, without_last(layout.wide_columns));
  append_new(columns, last);
  return columns;
}

/// RFC 4180: quoted where a comma, a quote or a line break stands in it, quotes doubled. Empty strings are quoted too,
/// so that they differ from null.
std::string quote(std::string_view text) {
  std::string out = valid_utf8(text);
  if (!out.empty() && out.find_first_of(",\"\r\n") == std::string::npos) return out;
  for (std::size_t at = 0; (at = out.find('"', at)) != std::string::npos; at += 2) out.insert(at, 1, '"');
  return '"' + out + '"';
}

std::string csv_cell(const Value& value) {
  if (const auto* text = value.as_string()) return quote(*text);
  std::string json;
  append_json(json, value);
  if (json == "null") return "";
  return quote(json);
}

class CsvWriter final : public Writer {
 public:
  explicit CsvWriter(WriterOptions options) : options_(std::move(options)) {}

  void begin(const Document& document, std::ostream& out) override {
    columns_ = csv_columns(document, options_);
    std::string line;
    for (const std::string& column : columns_) {
      if (!line.empty()) line += ',';
      line += quote(column);
    }
    write(line, out);
  }

  void row(const Document&, const Row& row, std::ostream& out) override {
    std::string line;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      if (i > 0) line += ',';
      if (const std::optional<Value> value = field(row, columns_[i])) line += csv_cell(*value);
    }
    write(line, out);
  }

  void end(const Document&, std::ostream&) override {}

 private:
  static void write(std::string& line, std::ostream& out) {
    line += '\n';
    out.write(line.data(), static_cast<std::streamsize>(line.size())).flush();
  }

  WriterOptions options_;
  std::vector<std::string> columns_;
};

}  // namespace

std::unique_ptr<Writer> make_csv_writer(WriterOptions options) {
  return std::make_unique<CsvWriter>(std::move(options));
}

}  // namespace warpmeter::reports::detail
