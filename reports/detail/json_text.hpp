#pragma once

#include <string>
#include <string_view>
#include <unordered_set>

#include "reports/model.hpp"

namespace warpmeter::reports::detail {

/// Arrays and objects within one value: what the writers write and the reader reads.
inline constexpr int kMaxDepth = 64;

/// Appends JSON, `{"a": 1, "b": [2, null]}`: in one line, valid UTF-8 (what is not is replaced), doubles in their
/// shortest form that reads back to the same bits, null for what is not finite.
void append_json(std::string& out, std::string_view text);
void append_json(std::string& out, double number);
void append_json(std::string& out, const Value& value, int depth = 0);  ///< std::logic_error beyond kMaxDepth
void append_json(std::string& out, const Object& object, int depth = 0);
void append_json(std::string& out, const std::vector<std::string>& texts);

/// Appends one object, field by field; std::logic_error when a name comes twice.
class ObjectText {
 public:
  explicit ObjectText(std::string& out) : out_(out) { out_ += '{'; }
  void add(std::string_view name, const Value& value, int depth = 0);
  void add(const Object& object, int depth = 0);
  /// `, "name": `, for a value that the caller appends.
  void name(std::string_view name);
  void close() { out_ += '}'; }

 private:
  std::string& out_;
  std::unordered_set<std::string> names_;
};

/// True for raw samples: a `*_samples_*` field that is an array or null.
[[nodiscard]] bool is_samples(std::string_view name, const Value& value);

/// Appends the flat row. `type`: "row" in JSON lines, "" elsewhere. `row_keys`, when not null, is held against the
/// configuration (see Writer).
void append_row(std::string& out, const Row& row, bool samples, std::string_view type,
                const std::vector<std::string>* row_keys);

/// Appends the document's fields except rows and summary to an open object, each after `separator`.
void append_envelope(std::string& out, const Document& document, std::string_view separator);

}  // namespace warpmeter::reports::detail
