#include <algorithm>
#include <map>
#include <ostream>
#include <set>

#include "reports/detail/cell.hpp"
#include "reports/detail/utf8.hpp"
#include "reports/detail/writers.hpp"

namespace warpmeter::reports::detail {
namespace {

const Value kNull;

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string escaped_cell(std::string_view name, const std::optional<Value>& value) {
  return value ? escape_markdown(format_cell(name, *value)) : std::string();
}

/// "naive", "d_model 64", "causal", "not causal".
std::string label(std::string_view name, const Value& value) {
  if (const auto* flag = value.as_bool()) return (*flag ? "" : "not ") + escape_markdown(printable(name));
  if (value.as_string() != nullptr && !value.as_string()->empty()) return escaped_cell(name, value);
  const std::string text = escaped_cell(name, value);
  return escape_markdown(printable(name)) + ' ' + (text.empty() ? "none" : text);
}

std::string joined(const std::vector<std::string>& parts, std::string_view separator) {
  std::string text;
  for (const std::string& part : parts) {
    if (!text.empty()) text += separator;
    text += part;
  }
  return text;
}

std::string text_of(const Object& object, std::string_view name) {
  const Value* value = object.find(name);
  return value == nullptr ? "" : escape_markdown(format_cell(name, *value));
}

std::string quoted_argument(const std::string& text) {
  const bool plain = !text.empty() && text.find_first_not_of(
                                          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                          "0123456789-_=+.,:/@%^") == std::string::npos;
  if (plain) return text;
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + '\'';
}

/// The command as typed, without the program's folder.
std::string command_line(const std::vector<std::string>& argv) {
  std::vector<std::string> parts;
  for (const std::string& argument : argv) {
    const std::size_t slash = parts.empty() ? argument.rfind('/') : std::string::npos;
    parts.push_back(quoted_argument(slash == std::string::npos ? argument : argument.substr(slash + 1)));
  }
  return printable(joined(parts, " "));
}

std::string device_text(const Object& device) {
  std::vector<std::string> details;
  const auto detail = [&](std::string_view name, std::string_view before, std::string_view after) {
    const std::string text = text_of(device, name);
    if (!text.empty()) details.push_back(std::string(before) + text + std::string(after));
  };
  std::string text = text_of(device, "name");
  if (text.empty()) text = text_of(device, "cpu");
  if (text.empty()) return "";
  detail("sm", "sm_", "");
  detail("driver", "driver ", "");
  detail("cuda", "CUDA ", "");
  detail("cores", "", " cores");
  detail("threads", "", " threads");
  detail("isa", "", "");
  if (!details.empty()) text += " (" + joined(details, ", ") + ")";
  return " on " + text;
}

/// What a reader needs to trust a pasted table: program, device, time and how it was timed.
std::string context_line(const Document& document) {
  std::string text = "Measured by " + escape_markdown(printable(document.tool));
  const std::string project = text_of(document.version, "project");
  if (!project.empty()) text += ' ' + project;
  std::vector<std::string> build;
  const std::string sha = text_of(document.version, "git_sha");
  if (!sha.empty()) build.push_back(sha.substr(0, 12));
  const Value* dirty = document.version.find("dirty");
  if (dirty != nullptr && dirty->as_bool() != nullptr && *dirty->as_bool()) build.emplace_back("modified");
  const std::string build_type = text_of(document.version, "build_type");
  if (!build_type.empty() && build_type != "Release") build.push_back(build_type + " build");
  if (!build.empty()) text += " (" + joined(build, ", ") + ")";
  text += device_text(document.device);
  std::vector<std::string> parts = {text};
  if (!document.started_at.empty()) parts.push_back(escape_markdown(printable(document.started_at)));
  for (const std::string_view name : {"timer", "cache", "warmup", "steps"}) {
    const std::string shown = text_of(document.settings, name);
    if (!shown.empty()) parts.push_back(std::string(name) + ' ' + shown);
  }
  const Value* limit = document.settings.find("memory_limit_bytes");
  if (limit != nullptr && limit->as_number().value_or(0) > 0) {
    parts.push_back("memory limit " + format_cell("limit_mib", *limit->as_number() / (1024.0 * 1024.0)) + " MiB");
  }
  const Value* check = document.settings.find("check");
  if (check != nullptr && check->as_bool() != nullptr && !*check->as_bool()) parts.emplace_back("results not checked");
  text = joined(parts, ", ") + '.';
  if (!document.argv.empty()) text += " Command: " + code_span(command_line(document.argv));
  return text;
}

class MarkdownWriter final : public Writer {
 public:
  explicit MarkdownWriter(WriterOptions options) : options_(std::move(options)) {}

  void begin(const Document& document, std::ostream&) override {
    exact_ = !options_.columns.empty();
    candidates_ = options_.columns;
    if (!exact_) {
      candidates_ = options_.layout.columns;
      if (candidates_.empty()) candidates_ = column_names({}, document.row_keys);
      if (options_.wide) append_new(candidates_, options_.layout.wide_columns);
    }
    for (const std::string& name : options_.layout.group_by) {
      if (!contains(candidates_, name)) group_by_.push_back(name);
    }
  }

  void row(const Document& document, const Row& row, std::ostream& out) override {
    ++rows_;
    std::vector<std::string> group;
    for (const std::string& name : group_by_) {
      const std::optional<Value> value = field(row, name);
      group.push_back(label(name, value ? *value : kNull));
    }
    if (rows_ == 1 || group != group_) {
      finish_table(out);
      group_ = group;
      // A group that comes back gets a table of its own: what is printed cannot be added to.
      continued_ = !groups_seen_.insert(group).second;
    }
    // What was left out on purpose, a dry run's every row, is not said twice.
    const bool said = row.status == Status::skipped && contains(options_.columns, "reason");
    if (row.status != Status::ok && !said) reasons_.push_back(reason_line(document, row));
    if (open_ && brings_new_column(row)) {
      finish_table(out);
      continued_ = true;
    }
    if (open_) {
      print_row(row, out);
    } else {
      pending_.push_back(row);
      if (row.status == Status::ok) open_table(out);
    }
    out.flush();
  }

  void end(const Document& document, std::ostream& out) override {
    finish_table(out);
    if (rows_ == 0) block("No rows.\n", out);
    if (!reasons_.empty()) {
      std::string text = std::to_string(reasons_.size()) + " of " + std::to_string(rows_) +
                         (rows_ == 1 ? " row" : " rows") + (reasons_.size() == 1 ? " is" : " are") + " not ok:\n\n";
      for (const std::string& line : reasons_) text += "- " + line + '\n';
      block(text, out);
    }
    block(context_line(document) + '\n', out);
    out.flush();
  }

 private:
  /// Text after a blank line, but for the first.
  void block(const std::string& text, std::ostream& out) {
    if (!first_block_) out << '\n';
    first_block_ = false;
    out << text;
  }

  [[nodiscard]] bool brings_new_column(const Row& row) const {
    return std::any_of(candidates_.begin(), candidates_.end(), [&](const std::string& name) {
      if (contains(columns_, name)) return false;
      const std::optional<Value> value = field(row, name);
      return value && !format_cell(name, *value).empty();
    });
  }

  void open_table(std::ostream& out) {
    for (const std::string& name : candidates_) {
      const bool had =
          std::any_of(pending_.begin(), pending_.end(), [&](const Row& row) { return field(row, name).has_value(); });
      // Later tables keep the columns of earlier ones, so that tables of one run look alike.
      if (exact_ || had) seen_.insert(name);
    }
    columns_.clear();
    for (const std::string& name : candidates_) {
      if (seen_.contains(name)) columns_.push_back(name);
    }
    for (const std::string& name : columns_) {
      std::size_t& width = widths_[name];
      width = std::max({width, code_points(heading(name)), std::size_t{has_unit(name) ? 6U : 3U}});
      for (const Row& row : pending_) {
        const std::optional<Value> value = field(row, name);
        width = std::max(width, code_points(escaped_cell(name, value)));
        if (value && !format_cell(name, *value).empty()) numeric_.try_emplace(name, value->as_number().has_value());
      }
    }
    std::string title = joined(group_, ", ");
    if (continued_) title += title.empty() ? "(continued)" : " (continued)";
    if (!title.empty()) block("### " + title + '\n', out);
    std::string header = "|";
    std::string rule = "|";
    for (const std::string& name : columns_) {
      const std::size_t width = widths_[name];
      header += ' ' + padded(heading(name), width, is_numeric(name)) + " |";
      rule += std::string(width + 1, '-') + (is_numeric(name) ? ":|" : "-|");
    }
    block(header + '\n' + rule + '\n', out);
    open_ = true;
    for (const Row& row : pending_) print_row(row, out);
    pending_.clear();
  }

  void finish_table(std::ostream& out) {
    if (!pending_.empty()) open_table(out);
    open_ = false;
    continued_ = false;
  }

  void print_row(const Row& row, std::ostream& out) {
    std::string line = "|";
    for (const std::string& name : columns_) {
      const std::optional<Value> value = field(row, name);
      line += ' ' + padded(escaped_cell(name, value), widths_[name], is_numeric(name)) + " |";
    }
    out << line << '\n';
  }

  [[nodiscard]] std::string heading(const std::string& name) const {
    for (const auto& [field_name, text] : options_.layout.headings) {
      if (field_name == name) return escape_markdown(printable(text));
    }
    return escape_markdown(printable(name));
  }

  /// Numbers stand to the right. A column without any value yet goes by its name.
  [[nodiscard]] bool is_numeric(const std::string& name) const {
    const auto known = numeric_.find(name);
    return known == numeric_.end() ? has_unit(name) : known->second;
  }

  static std::string padded(std::string text, std::size_t width, bool right) {
    const std::size_t length = code_points(text);
    if (length < width) text.insert(right ? 0 : text.size(), width - length, ' ');
    return text;
  }

  /// "naive, fp32, d_model 16, seq_len 16384: oom: predicted 24.1 GiB".
  [[nodiscard]] std::string reason_line(const Document& document, const Row& row) const {
    std::vector<std::string> names = options_.layout.group_by;
    append_new(names, options_.layout.columns);
    std::vector<std::string> parts;
    for (const bool all : {false, true}) {
      if (!parts.empty()) break;
      for (const std::string& name : all ? document.row_keys : names) {
        const Value* value = row.configuration.find(name);
        if (value != nullptr) parts.push_back(label(name, *value));
      }
    }
    std::string line = joined(parts, ", ") + ": " + std::string(reports::name(row.status));
    if (!row.reason.empty()) line += ": " + escape_markdown(printable(row.reason));
    if (options_.wide && !row.rerun.empty()) line += "; rerun: " + code_span(printable(row.rerun));
    return line;
  }

  WriterOptions options_;
  bool exact_ = false;                   ///< --columns
  std::vector<std::string> candidates_;  ///< columns that may be shown, in order
  std::vector<std::string> group_by_;    ///< what splits the tables
  std::vector<std::string> group_;       ///< labels of the group at hand
  std::set<std::vector<std::string>> groups_seen_;
  std::vector<Row> pending_;          ///< rows of this group before its table is open
  std::vector<std::string> columns_;  ///< of the open table
  std::set<std::string, std::less<>> seen_;
  std::map<std::string, std::size_t> widths_;
  std::map<std::string, bool> numeric_;
  std::vector<std::string> reasons_;
  std::size_t rows_ = 0;
  bool open_ = false;
  bool continued_ = false;
  bool first_block_ = true;
};

}  // namespace

std::unique_ptr<Writer> make_markdown_writer(WriterOptions options) {
  return std::make_unique<MarkdownWriter>(std::move(options));
}

}  // namespace warpmeter::reports::detail
