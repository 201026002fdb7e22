#include "reports/writer.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <ostream>

#include "reports/detail/json_text.hpp"
#include "reports/detail/writers.hpp"

namespace warpmeter::reports {
namespace {

constexpr std::array<std::string_view, 4> kFormatNames = {"md", "json", "jsonl", "csv"};

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Indices of the configurations that share the values of `shown`, one list for each combination.
std::vector<std::vector<std::size_t>> look_alikes(const std::vector<Object>& configurations,
                                                  const std::vector<std::string>& shown) {
  std::map<std::string, std::vector<std::size_t>> classes;
  for (std::size_t i = 0; i < configurations.size(); ++i) {
    std::string key;
    for (const std::string& name : shown) {
      const Value* value = configurations[i].find(name);
      if (value != nullptr) detail::append_json(key, *value);
      key += '\n';
    }
    classes[key].push_back(i);
  }
  std::vector<std::vector<std::size_t>> lists;
  for (auto& [key, list] : classes) lists.push_back(std::move(list));
  return lists;
}

}  // namespace

std::string_view name(Format format) noexcept {
  return kFormatNames[static_cast<std::size_t>(format)];
}

std::optional<Format> parse_format(std::string_view text) noexcept {
  for (std::size_t i = 0; i < kFormatNames.size(); ++i) {
    if (kFormatNames[i] == text) return static_cast<Format>(i);
  }
  return std::nullopt;
}

std::optional<Format> format_of_path(std::string_view path) noexcept {
  const std::size_t slash = path.rfind('/');
  const std::string_view file = slash == std::string_view::npos ? path : path.substr(slash + 1);
  const std::size_t dot = file.rfind('.');
  if (dot == std::string_view::npos || dot == 0) return std::nullopt;
  return parse_format(file.substr(dot + 1));
}

std::vector<std::string> column_names(const TableLayout& layout, const std::vector<std::string>& row_keys) {
  std::vector<std::string> names;
  detail::append_new(names, row_keys);
  detail::append_new(names, layout.group_by);
  detail::append_new(names, layout.columns);
  detail::append_new(names, layout.wide_columns);
  detail::append_new(names, {"status", "reason", "rerun"});
  return names;
}

TableLayout tell_apart(TableLayout layout, const std::vector<std::string>& row_keys,
                       const std::vector<Object>& configurations) {
  std::vector<std::string> shown = layout.group_by;
  detail::append_new(shown, layout.columns);
  std::vector<std::string> added;
  for (const std::string& key : row_keys) {
    if (contains(shown, key)) continue;
    const auto lists = look_alikes(configurations, shown);
    const bool tells = std::any_of(lists.begin(), lists.end(), [&](const std::vector<std::size_t>& list) {
      const Value* first = configurations[list.front()].find(key);
      return std::any_of(list.begin() + 1, list.end(), [&](std::size_t i) {
        const Value* other = configurations[i].find(key);
        return (first == nullptr) != (other == nullptr) || (first != nullptr && !(*first == *other));
      });
    });
    if (!tells) continue;
    shown.push_back(key);
    added.push_back(key);
  }
  const auto figure = std::find_if(layout.columns.begin(), layout.columns.end(),
                                   [&](const std::string& column) { return !contains(row_keys, column); });
  layout.columns.insert(figure, added.begin(), added.end());
  return layout;
}

std::unique_ptr<Writer> make_writer(Format format, WriterOptions options) {
  switch (format) {
    case Format::md:
      return detail::make_markdown_writer(std::move(options));
    case Format::json:
      return detail::make_json_writer(std::move(options));
    case Format::jsonl:
      return detail::make_json_lines_writer(std::move(options));
    case Format::csv:
      break;
  }
  return detail::make_csv_writer(std::move(options));
}

void write_document(const Document& document, Format format, const WriterOptions& options, std::ostream& out) {
  const std::unique_ptr<Writer> writer = make_writer(format, options);
  writer->begin(document, out);
  for (const Row& row : document.rows) writer->row(document, row, out);
  writer->end(document, out);
}

std::string row_to_json(const Row& row, bool samples) {
  std::string text;
  detail::append_row(text, row, samples, "", nullptr);
  return text;
}

namespace detail {

void append_new(std::vector<std::string>& names, const std::vector<std::string>& more) {
  for (const std::string& name : more) {
    if (!contains(names, name)) names.push_back(name);
  }
}

}  // namespace detail
}  // namespace warpmeter::reports
