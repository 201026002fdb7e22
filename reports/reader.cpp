#include "reports/reader.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <system_error>
#include <unordered_set>

#include <nlohmann/json.hpp>

#include "reports/detail/json_text.hpp"
#include "reports/detail/utf8.hpp"

namespace warpmeter::reports {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxFileBytes = std::size_t{1} << 29;
/// Levels of a whole document: what a value may hold, within rows within the document.
constexpr int kMaxDocumentDepth = detail::kMaxDepth + 8;

/// A complaint about one JSON text; parse_document adds the origin.
struct JsonProblem {
  std::size_t line = 1;
  std::size_t column = 1;
  std::string what;
};

/// Characters of a text, remembering how far the parser has come.
class Cursor {
 public:
  using iterator_category = std::forward_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  Cursor(const char* at, const char** reached) : at_(at), reached_(reached) {}
  reference operator*() const { return *at_; }
  Cursor& operator++() {
    *reached_ = ++at_;
    return *this;
  }
  Cursor operator++(int) {
    const Cursor before = *this;
    ++*this;
    return before;
  }
  friend bool operator==(const Cursor& a, const Cursor& b) { return a.at_ == b.at_; }

 private:
  const char* at_;
  const char** reached_;
};

/// Builds a Value from the parser's events. Stops with `problem` at what Value cannot hold.
class ValueBuilder {
 public:
  bool null() { return put(Value()); }
  bool boolean(bool value) { return put(Value(value)); }
  bool number_integer(std::int64_t value) { return put(Value(value)); }
  bool number_unsigned(std::uint64_t value) { return put(Value(value)); }
  bool number_float(double value, const std::string&) { return put(Value(value)); }
  bool string(std::string& value) { return put(Value(std::move(value))); }
  bool binary(json::binary_t&) { return fail("binary data"); }

  bool start_object(std::size_t) { return open(false); }
  bool start_array(std::size_t) { return open(true); }
  bool key(std::string& name) {
    if (!levels_.back().names.insert(name).second) return fail("the key '" + name + "' comes twice");
    levels_.back().fields.emplace_back(std::move(name), Value());
    return true;
  }
  bool end_object() {
    Level level = std::move(levels_.back());
    levels_.pop_back();
    return put(Value(Object(std::move(level.fields))));
  }
  bool end_array() {
    Level level = std::move(levels_.back());
    levels_.pop_back();
    return put(Value(std::move(level.elements)));
  }
  bool parse_error(std::size_t, const std::string&, const json::exception& error) {
    const std::string_view what = error.what();
    // "[json.exception.parse_error.101] parse error at line 1, column 5: syntax error while parsing ...": ours has the
    // place already.
    std::size_t from = what.find(": ");
    if (from == std::string_view::npos) from = what.find("] ");
    return fail(what.substr(from == std::string_view::npos ? 0 : from + 2));
  }

  Value result;
  std::string problem;

 private:
  struct Level {
    bool is_array = false;
    Value::Array elements;
    std::vector<Object::Field> fields;
    std::unordered_set<std::string> names;
  };

  bool open(bool is_array) {
    if (levels_.size() >= kMaxDocumentDepth) return fail("nested too deeply");
    levels_.emplace_back().is_array = is_array;
    return true;
  }
  bool put(Value value) {
    if (levels_.empty()) {
      result = std::move(value);
    } else if (levels_.back().is_array) {
      levels_.back().elements.push_back(std::move(value));
    } else {
      levels_.back().fields.back().second = std::move(value);
    }
    return true;
  }
  bool fail(std::string_view what) {
    problem = what;
    return false;
  }

  std::vector<Level> levels_;
};

/// The JSON value that `text` is; nullopt and `problem` when it is none.
std::optional<Value> parse_json(std::string_view text, JsonProblem& problem) {
  const char* const begin = text.data();
  const char* reached = begin;
  ValueBuilder builder;
  // The parser takes a NUL byte for the end, whatever follows.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    reached = begin + nul + 1;
    builder.problem = "a NUL byte";
  } else if (json::sax_parse(Cursor(begin, &reached), Cursor(begin + text.size(), &reached), &builder)) {
    return std::move(builder.result);
  }
  // The character that was read last is the first that cannot be.
  const std::size_t size = static_cast<std::size_t>(reached - begin);
  const std::string_view before(begin, size == 0 ? 0 : size - 1);
  problem.line = 1 + static_cast<std::size_t>(std::count(before.begin(), before.end(), '\n'));
  const std::size_t line_start = before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
  problem.column = 1 + before.size() - line_start;
  problem.what = detail::printable(builder.problem);
  if (problem.what.size() > 160) problem.what = detail::valid_utf8(problem.what.substr(0, 157)) + "...";
  return std::nullopt;
}

/// Where in the file something is wrong: "line 3" or "row 2" or "".
[[noreturn]] void fail(const std::string& where, const std::string& what) {
  throw ReadError(detail::printable(where + ": " + what));
}

std::string type_name(const Value& value) {
  if (value.is_null()) return "null";
  if (value.as_bool() != nullptr) return "a boolean";
  if (value.as_int() != nullptr || value.as_double() != nullptr) return "a number";
  if (value.as_string() != nullptr) return "a string";
  return value.as_array() != nullptr ? "an array" : "an object";
}

std::string shortened(const std::string& text) {
  return text.size() <= 60 ? text : detail::valid_utf8(text.substr(0, 57)) + "...";
}

std::string take_string(const Value& value, const std::string& where, std::string_view name) {
  const auto* text = value.as_string();
  if (text == nullptr) fail(where, "'" + std::string(name) + "' is " + type_name(value) + ", not a string");
  return *text;
}

Object take_object(const Value& value, const std::string& where, std::string_view name) {
  const auto* object = value.as_object();
  if (object == nullptr) fail(where, "'" + std::string(name) + "' is " + type_name(value) + ", not an object");
  return *object;
}

std::vector<std::string> take_strings(const Value& value, const std::string& where, std::string_view name) {
  const auto* array = value.as_array();
  if (array == nullptr) fail(where, "'" + std::string(name) + "' is " + type_name(value) + ", not an array");
  std::vector<std::string> texts;
  for (const Value& element : *array) texts.push_back(take_string(element, where, std::string(name) + "[...]"));
  return texts;
}

class RowReader {
 public:
  explicit RowReader(const std::vector<std::string>& row_keys) : keys_(row_keys.begin(), row_keys.end()) {}

  /// `skip_type`: "type" is the line's kind, not a figure.
  [[nodiscard]] Row read(const Object& object, const std::string& where, bool skip_type) const {
    Row row;
    std::vector<Object::Field> configuration;
    std::vector<Object::Field> figures;
    bool has_status = false;
    bool has_reason = false;
    bool has_rerun = false;
    for (const Object::Field& field : object.fields()) {
      const auto& [name, value] = field;
      if (name == "status") {
        const std::string text = take_string(value, where, name);
        const auto status = parse_status(text);
        if (!status) fail(where, "'" + shortened(text) + "' is no status");
        row.status = *status;
        has_status = true;
      } else if (name == "reason") {
        row.reason = value.is_null() ? "" : take_string(value, where, name);
        has_reason = true;
      } else if (name == "rerun") {
        row.rerun = take_string(value, where, name);
        has_rerun = true;
      } else if (skip_type && name == "type") {
        continue;
      } else if (keys_.contains(name)) {
        configuration.push_back(field);
      } else {
        figures.push_back(field);
      }
    }
    for (const auto& [has, name] : {std::pair{has_status, "status"}, {has_reason, "reason"}, {has_rerun, "rerun"}}) {
      if (!has) fail(where, "the row has no '" + std::string(name) + "'");
    }
    row.configuration = Object(std::move(configuration));
    row.figures = Object(std::move(figures));
    return row;
  }

 private:
  std::unordered_set<std::string> keys_;
};

/// The fields that a whole document and a JSON-lines header share; `others` are the ones that may stand beside them.
void read_envelope(const Object& object, const std::string& where, std::initializer_list<std::string_view> others,
                   Document& document) {
  // First, so that another version's file is named as one and not torn apart for its fields.
  const Value* schema = object.find("schema");
  if (schema == nullptr) fail(where, "not a result of this suite: there is no 'schema'");
  document.schema = take_string(*schema, where, "schema");
  if (document.schema != kSchema) {
    fail(where, "schema '" + shortened(document.schema) + "'; this program reads '" + std::string(kSchema) + "'");
  }
  const auto need = [&](std::string_view name) -> const Value& {
    const Value* value = object.find(name);
    if (value == nullptr) fail(where, "there is no '" + std::string(name) + "'");
    return *value;
  };
  document.tool = take_string(need("tool"), where, "tool");
  document.version = take_object(need("version"), where, "version");
  document.argv = take_strings(need("argv"), where, "argv");
  document.started_at = take_string(need("started_at"), where, "started_at");
  document.device = take_object(need("device"), where, "device");
  document.libraries = take_object(need("libraries"), where, "libraries");
  document.settings = take_object(need("settings"), where, "settings");
  document.row_keys = take_strings(need("row_keys"), where, "row_keys");
  constexpr std::array<std::string_view, 9> kFields = {"schema", "tool",      "version",  "argv",    "started_at",
                                                       "device", "libraries", "settings", "row_keys"};
  for (const auto& [name, value] : object.fields()) {
    const bool known = std::find(kFields.begin(), kFields.end(), name) != kFields.end() ||
                       std::find(others.begin(), others.end(), name) != others.end();
    if (!known) fail(where, "unknown field '" + shortened(name) + "'");
  }
}

Document read_whole(const Value& value, const std::string& origin) {
  const auto* object = value.as_object();
  if (object == nullptr) fail(origin, "not a result of this suite: " + type_name(value) + ", not an object");
  Document document;
  read_envelope(*object, origin, {"rows", "summary"}, document);
  const Value* rows = object->find("rows");
  if (rows == nullptr || rows->as_array() == nullptr) fail(origin, "there is no array 'rows'");
  const Value* summary = object->find("summary");
  if (summary == nullptr) fail(origin, "there is no 'summary'");
  document.summary = take_object(*summary, origin, "summary");
  const RowReader reader(document.row_keys);
  for (const Value& row : *rows->as_array()) {
    const std::string where = origin + ": row " + std::to_string(document.rows.size() + 1);
    if (row.as_object() == nullptr) fail(where, "is " + type_name(row) + ", not an object");
    document.rows.push_back(reader.read(*row.as_object(), where, false));
  }
  return document;
}

bool is_header(const Value& value) {
  const auto* object = value.as_object();
  const Value* type = object == nullptr ? nullptr : object->find("type");
  return type != nullptr && type->as_string() != nullptr && *type->as_string() == "header";
}

/// The rest of a JSON-lines file after its header. A last line without its line break is what a killed run leaves:
/// it counts when it is whole and is dropped when it is not.
Document read_lines(const Value& header, std::string_view text, const std::string& origin) {
  Document document;
  read_envelope(*header.as_object(), origin + ": line 1", {"type"}, document);
  const RowReader reader(document.row_keys);
  bool ended = false;
  for (std::size_t number = 2; !text.empty(); ++number) {
    const std::size_t end = text.find('\n');
    const bool whole = end != std::string_view::npos;
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(whole ? end + 1 : text.size());
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    JsonProblem problem;
    const std::optional<Value> value = parse_json(line, problem);
    if (!value && !whole) break;
    const std::string where = origin + ": line " + std::to_string(number);
    if (!value) fail(where + ", column " + std::to_string(problem.column), problem.what);
    const auto* object = value->as_object();
    if (object == nullptr) fail(where, type_name(*value) + ", not an object");
    if (ended) fail(where, "there is more after the summary");
    const Value* type = object->find("type");
    if (type == nullptr) fail(where, "there is no 'type'");
    const std::string kind = take_string(*type, where, "type");
    if (kind == "row") {
      document.rows.push_back(reader.read(*object, where, true));
    } else if (kind == "summary") {
      std::vector<Object::Field> fields = object->fields();
      std::erase_if(fields, [](const Object::Field& field) { return field.first == "type"; });
      document.summary = Object(std::move(fields));
      ended = true;
    } else {
      fail(where, "type '" + shortened(kind) + "'; expected row or summary");
    }
  }
  return document;
}

}  // namespace

Document parse_document(std::string_view text, const std::string& origin) {
  JsonProblem problem;
  // A header is a whole JSON text on the first line; a document spreads over lines, or is one with nothing after it.
  const std::size_t line_end = text.find('\n');
  if (const std::optional<Value> first = parse_json(text.substr(0, line_end), problem)) {
    const std::string_view rest = line_end == std::string_view::npos ? "" : text.substr(line_end + 1);
    if (is_header(*first)) return read_lines(*first, rest, origin);
    if (rest.find_first_not_of(" \t\r\n") == std::string_view::npos) return read_whole(*first, origin);
  }
  const std::optional<Value> value = parse_json(text, problem);
  if (!value) {
    if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) fail(origin, "is empty");
    fail(origin + ": line " + std::to_string(problem.line) + ", column " + std::to_string(problem.column),
         problem.what);
  }
  return read_whole(*value, origin);
}

Document read_document(const std::string& path) {
  const auto fail_errno = [&] { fail("cannot read '" + path + "'", std::generic_category().message(errno)); };
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (file == nullptr) fail_errno();
  std::string text;
  std::vector<char> buffer(std::size_t{1} << 16);
  while (const std::size_t n = std::fread(buffer.data(), 1, buffer.size(), file.get())) {
    text.append(buffer.data(), n);
    if (text.size() > kMaxFileBytes) fail("cannot read '" + path + "'", "larger than 512 MiB: not a result file");
  }
  if (std::ferror(file.get()) != 0) fail_errno();
  return parse_document(text, path);
}

Row row_from_json(std::string_view text, const std::vector<std::string>& row_keys) {
  JsonProblem problem;
  const std::optional<Value> value = parse_json(text, problem);
  if (!value) fail("row, column " + std::to_string(problem.column), problem.what);
  if (value->as_object() == nullptr) fail("row", type_name(*value) + ", not an object");
  return RowReader(row_keys).read(*value->as_object(), "row", false);
}

}  // namespace warpmeter::reports
