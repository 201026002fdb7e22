#include "tools/harness/resume.hpp"

#include <algorithm>
#include <array>

#include <fmt/core.h>

namespace warpmeter::harness {
namespace {

using reports::Object;
using reports::Value;

/// Settings that say where rows go or how they are run, not what they measure. Everything else must be the same, so
/// that a setting added later counts until someone decides that it does not. A row's dtype is in its configuration.
constexpr std::array<std::string_view, 16> kIrrelevant = {
    "device",  "dtype",  "dtypes",  "format",  "output",      "outputs", "columns",       "wide",
    "samples", "resume", "dry_run", "isolate", "row_timeout", "preset",  "row_timeout_s", "config"};

std::string text_of(const Value* value) {
  if (value == nullptr || value->is_null()) return "none";
  if (const auto* text = value->as_string()) return *text;
  if (const auto* flag = value->as_bool()) return *flag ? "true" : "false";
  if (const auto* whole = value->as_int()) return fmt::format("{}", *whole);
  if (const auto number = value->as_number()) return fmt::format("{}", *number);
  return "?";
}

/// An absent field and a null one say the same.
bool same(const Value* a, const Value* b) {
  if (a == nullptr || a->is_null()) return b == nullptr || b->is_null();
  if (b == nullptr || b->is_null()) return false;
  const auto x = a->as_number(), y = b->as_number();
  if (x && y) return *x == *y;  // 2 and 2.0: a file does not tell them apart
  return *a == *b;
}

/// One text for each configuration, whatever the order of its fields.
std::string key_of(const Object& configuration) {
  std::vector<std::string> parts;
  for (const auto& [name, value] : configuration.fields()) {
    if (!value.is_null()) parts.push_back(fmt::format("{}={}", name, text_of(&value)));
  }
  std::sort(parts.begin(), parts.end());
  std::string key;
  for (const std::string& part : parts) key += fmt::format("{}:{};", part.size(), part);
  return key;
}

std::optional<std::string> device_difference(const Object& earlier, const Object& now) {
  for (const std::string_view field : {"name", "uuid", "cpu", "cores"}) {
    if (same(earlier.find(field), now.find(field))) continue;
    return fmt::format("it was measured on another device ({} {}, now {})", field, text_of(earlier.find(field)),
                       text_of(now.find(field)));
  }
  return std::nullopt;
}

std::optional<std::string> settings_difference(const Object& earlier, const Object& now) {
  const auto compare = [&](const Object& names) -> std::optional<std::string> {
    for (const auto& [name, value] : names.fields()) {
      if (std::find(kIrrelevant.begin(), kIrrelevant.end(), name) != kIrrelevant.end()) continue;
      if (same(earlier.find(name), now.find(name))) continue;
      return fmt::format("it was measured with {} {}, now {}", name, text_of(earlier.find(name)),
                         text_of(now.find(name)));
    }
    return std::nullopt;
  };
  if (auto found = compare(now)) return found;
  if (auto found = compare(earlier)) return found;
  return std::nullopt;
}

bool has_samples(const reports::Row& row) {
  const auto& figures = row.figures.fields();
  return row.status != reports::Status::ok || std::any_of(figures.begin(), figures.end(), [](const auto& figure) {
           return figure.first.find("_samples_") != std::string::npos && !figure.second.is_null();
         });
}

}  // namespace

std::optional<std::string> difference(const reports::Document& earlier, const reports::Document& now) {
  if (earlier.schema != now.schema) return fmt::format("its schema is {}, not {}", earlier.schema, now.schema);
  if (earlier.tool != now.tool) return fmt::format("it is a result of {}, not of {}", earlier.tool, now.tool);
  if (auto found = device_difference(earlier.device, now.device)) return found;
  return settings_difference(earlier.settings, now.settings);
}

Resume::Resume(const reports::Document& earlier, const reports::Document& now, bool samples) {
  if (auto found = difference(earlier, now)) {
    refusal_ = *found;
    return;
  }
  for (const reports::Row& row : earlier.rows) {
    if (samples && !has_samples(row)) continue;
    const auto [at, added] = rows_.try_emplace(key_of(row.configuration), row);
    if (!added && (!is_failure(row.status) || is_failure(at->second.status))) at->second = row;
  }
}

const reports::Row* Resume::find(const reports::Object& configuration) const {
  const auto at = rows_.find(key_of(configuration));
  return at == rows_.end() || is_failure(at->second.status) ? nullptr : &at->second;
}

bool Resume::failed_before(const reports::Object& configuration) const {
  const auto at = rows_.find(key_of(configuration));
  return at != rows_.end() && is_failure(at->second.status);
}

}  // namespace warpmeter::harness
