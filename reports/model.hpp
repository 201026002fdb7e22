#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace warpmeter::reports {

class Value;

/// Named values in the order that they were set; names are unique. Equal means the same fields in the same order.
class Object {
 public:
  using Field = std::pair<std::string, Value>;

  // Where Value is complete: not every compiler takes a vector of incomplete elements to pieces here.
  Object();
  Object(const Object&);
  Object(Object&&) noexcept;
  Object& operator=(const Object&);
  Object& operator=(Object&&) noexcept;
  ~Object();
  /// Throws std::invalid_argument, naming it, when a name comes twice. For many fields at once: set() searches.
  explicit Object(std::vector<Field> fields);
  /// Adds, or replaces in place.
  void set(std::string_view name, Value value);
  [[nodiscard]] const Value* find(std::string_view name) const;
  [[nodiscard]] bool has(std::string_view name) const { return find(name) != nullptr; }
  [[nodiscard]] const std::vector<std::pair<std::string, Value>>& fields() const { return fields_; }
  [[nodiscard]] bool empty() const;
  friend bool operator==(const Object&, const Object&);

 private:
  std::vector<std::pair<std::string, Value>> fields_;
};

/// What a field holds. A double that is not finite is written as null everywhere.
class Value {
 public:
  using Array = std::vector<Value>;

  Value() = default;  ///< null
  Value(std::nullptr_t) {}
  Value(bool value) : data_(value) {}
  Value(int value) : data_(static_cast<std::int64_t>(value)) {}
  Value(std::int64_t value) : data_(value) {}
  Value(std::uint64_t value);  ///< a double above 2^63 - 1
  Value(double value) : data_(value) {}
  Value(const char* value) : data_(std::string(value)) {}
  Value(std::string value) : data_(std::move(value)) {}
  Value(std::string_view value) : data_(std::string(value)) {}
  Value(Array value) : data_(std::move(value)) {}
  Value(const std::vector<double>& values);
  Value(Object value) : data_(std::move(value)) {}
  template <class T>
  Value(const std::optional<T>& value) {
    if (value) *this = Value(*value);
  }

  [[nodiscard]] bool is_null() const { return std::holds_alternative<std::monostate>(data_); }
  [[nodiscard]] const bool* as_bool() const { return std::get_if<bool>(&data_); }
  [[nodiscard]] const std::int64_t* as_int() const { return std::get_if<std::int64_t>(&data_); }
  [[nodiscard]] const double* as_double() const { return std::get_if<double>(&data_); }
  [[nodiscard]] const std::string* as_string() const { return std::get_if<std::string>(&data_); }
  [[nodiscard]] const Array* as_array() const { return std::get_if<Array>(&data_); }
  [[nodiscard]] const Object* as_object() const { return std::get_if<Object>(&data_); }
  /// An int or a finite double as double.
  [[nodiscard]] std::optional<double> as_number() const;
  friend bool operator==(const Value&, const Value&);

 private:
  std::variant<std::monostate, bool, std::int64_t, double, std::string, Array, Object> data_;
};

/// How a row ended.
enum class Status : std::uint8_t {
  ok,
  oom,          ///< did not fit, or was predicted not to
  unsupported,  ///< this build, machine or implementation cannot
  skipped,      ///< left out by a rule that the reason names
  mismatch,     ///< the result was wrong: no speed is shown
  error,        ///< threw
  crashed,      ///< its process died
  timeout,
  interrupted,  ///< Ctrl-C came while it ran
  not_run,      ///< never started
};
[[nodiscard]] std::string_view name(Status status) noexcept;
[[nodiscard]] std::optional<Status> parse_status(std::string_view text) noexcept;
/// ok, oom, unsupported and skipped are results; the others make a tool exit with 1.
[[nodiscard]] constexpr bool is_failure(Status status) noexcept {
  return status != Status::ok && status != Status::oom && status != Status::unsupported && status != Status::skipped;
}

/// One measured configuration. In files the fields of `configuration` and `figures` stand side by side in one flat
/// object, followed by status, reason and rerun.
struct Row {
  Object configuration;  ///< what was asked for: identifies the row; values are strings, ints or bools
  Object figures;        ///< what was measured; a figure that was not obtained is null or absent
  Status status = Status::not_run;
  std::string reason;  ///< one line; empty when ok
  std::string rerun;   ///< the command line that repeats this row alone
};

inline constexpr std::string_view kSchema = "warpmeter/1";

/// One run of one tool.
struct Document {
  std::string schema{kSchema};
  std::string tool;
  Object version;  ///< project, git_sha, dirty, build_type
  std::vector<std::string> argv;
  std::string started_at;  ///< UTC, "2026-01-31T12:00:00Z"
  Object device;           ///< design: name, uuid, sm, ... or cpu, cores, isa, ...; ceilings
  Object libraries;
  Object settings;                    ///< the shared options as they were in force
  std::vector<std::string> row_keys;  ///< names of the fields of Row::configuration, in order
  std::vector<Row> rows;
  Object summary;  ///< counts by status, seconds, warnings
};

/// The field of a flat row by its name in files: of the configuration, else of the figures, else status, reason (null
/// when empty) and rerun. nullopt when the row has no such field; a null value when it has one without a figure.
[[nodiscard]] std::optional<Value> field(const Row& row, std::string_view name);

/// Counts into document.summary, keeping what else is there: "rows", then one for each status, zeros too.
void summarize(Document& document);

}  // namespace warpmeter::reports
