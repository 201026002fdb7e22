#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace warpmeter::reports::snapshot {

struct Data;

/// An integer beyond 64 bits: two's complement, least significant byte first, no more bytes than it takes.
struct BigInteger {
  std::string bytes;
  friend bool operator==(const BigInteger&, const BigInteger&) = default;
};
struct DataTuple {
  std::vector<Data> items;
};
/// In the file's order; `keys[i]` belongs to `values[i]`, and no key comes twice.
struct DataDict {
  std::vector<Data> keys;
  std::vector<Data> values;
};

/// What a snapshot holds beyond the fields of the model, as Python had it: None, bool, int, float, str, list, tuple,
/// dict. Kept so that reading and writing a file loses nothing.
struct Data {
  std::variant<std::monostate, bool, std::int64_t, BigInteger, double, std::string, std::vector<Data>, DataTuple,
               DataDict>
      value;

  [[nodiscard]] const std::string* as_text() const { return std::get_if<std::string>(&value); }
  [[nodiscard]] const std::int64_t* as_integer() const { return std::get_if<std::int64_t>(&value); }
};

/// The same types and values all the way down; doubles by their bits, dicts whatever their order.
[[nodiscard]] bool operator==(const Data& a, const Data& b);

/// Named values beside those of the model.
using Fields = std::vector<std::pair<Data, Data>>;
[[nodiscard]] bool same_fields(const Fields& a, const Fields& b);  ///< whatever their order
[[nodiscard]] const Data* find(const Fields& fields, std::string_view name);

/// "-123": of any size.
[[nodiscard]] std::string decimal(const BigInteger& integer);
/// From an optional minus and digits; false when `text` is something else. Small ones become int64.
[[nodiscard]] bool parse_decimal(std::string_view text, Data& result);
/// From two's complement bytes, least significant first.
[[nodiscard]] Data integer_from_bytes(std::string_view bytes);

}  // namespace warpmeter::reports::snapshot
