#include "reports/model.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace warpmeter::reports {
namespace {

constexpr std::array<std::string_view, 10> kStatusNames = {"ok",    "oom",     "unsupported", "skipped",     "mismatch",
                                                           "error", "crashed", "timeout",     "interrupted", "not_run"};

}  // namespace

Object::Object() = default;
Object::Object(const Object&) = default;
Object::Object(Object&&) noexcept = default;
Object& Object::operator=(const Object&) = default;
Object& Object::operator=(Object&&) noexcept = default;
Object::~Object() = default;

Object::Object(std::vector<Field> fields) : fields_(std::move(fields)) {
  std::vector<std::string_view> names;
  names.reserve(fields_.size());
  for (const Field& field : fields_) names.push_back(field.first);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) throw std::invalid_argument("field '" + std::string(*twice) + "' comes twice");
}

void Object::set(std::string_view name, Value value) {
  for (Field& field : fields_) {
    if (field.first == name) {
      field.second = std::move(value);
      return;
    }
  }
  fields_.emplace_back(std::string(name), std::move(value));
}

const Value* Object::find(std::string_view name) const {
  for (const Field& field : fields_) {
    if (field.first == name) return &field.second;
  }
  return nullptr;
}

bool Object::empty() const {
  return fields_.empty();
}

bool operator==(const Object& a, const Object& b) {
  return a.fields_ == b.fields_;
}

Value::Value(std::uint64_t value) {
  if (value <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    data_ = static_cast<std::int64_t>(value);
  } else {
    data_ = static_cast<double>(value);
  }
}

Value::Value(const std::vector<double>& values) : data_(Array(values.begin(), values.end())) {}

std::optional<double> Value::as_number() const {
  if (const auto* integer = as_int()) return static_cast<double>(*integer);
  const double* number = as_double();
  if (number != nullptr && std::isfinite(*number)) return *number;
  return std::nullopt;
}

bool operator==(const Value& a, const Value& b) {
  return a.data_ == b.data_;
}

std::string_view name(Status status) noexcept {
  return kStatusNames[static_cast<std::size_t>(status)];
}

std::optional<Status> parse_status(std::string_view text) noexcept {
  for (std::size_t i = 0; i < kStatusNames.size(); ++i) {
    if (kStatusNames[i] == text) return static_cast<Status>(i);
  }
  return std::nullopt;
}

std::optional<Value> field(const Row& row, std::string_view name) {
  if (const Value* value = row.configuration.find(name)) return *value;
  if (const Value* value = row.figures.find(name)) return *value;
  if (name == "status") return Value(reports::name(row.status));
  if (name == "reason") return row.reason.empty() ? Value() : Value(row.reason);
  if (name == "rerun") return Value(row.rerun);
  return std::nullopt;
}

void summarize(Document& document) {
  std::array<std::int64_t, kStatusNames.size()> counts{};
  for (const Row& row : document.rows) ++counts[static_cast<std::size_t>(row.status)];
  document.summary.set("rows", static_cast<std::int64_t>(document.rows.size()));
  for (std::size_t i = 0; i < counts.size(); ++i) document.summary.set(kStatusNames[i], counts[i]);
}

}  // namespace warpmeter::reports
