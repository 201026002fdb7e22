#include "reports/snapshot/data.hpp"

#include <algorithm>
#include <bit>
#include <charconv>

namespace warpmeter::reports::snapshot {
namespace {

bool same_dict(const DataDict& a, const DataDict& b) {
  if (a.keys.size() != b.keys.size()) return false;
  for (std::size_t i = 0; i < a.keys.size(); ++i) {
    // Mostly in the same order.
    std::size_t at = i;
    if (!(b.keys[i] == a.keys[i])) {
      const auto found = std::find(b.keys.begin(), b.keys.end(), a.keys[i]);
      if (found == b.keys.end()) return false;
      at = static_cast<std::size_t>(found - b.keys.begin());
    }
    if (!(a.values[i] == b.values[at])) return false;
  }
  return true;
}

/// Drops the bytes that only repeat the sign.
void shorten(std::string& bytes) {
  while (bytes.size() > 1) {
    const auto last = static_cast<unsigned char>(bytes.back());
    const bool negative = (static_cast<unsigned char>(bytes[bytes.size() - 2]) & 0x80) != 0;
    if (last != (negative ? 0xFF : 0x00)) break;
    bytes.pop_back();
  }
}

/// Two's complement of a number's bytes, in place.
void negate(std::string& bytes) {
  unsigned carry = 1;
  for (char& byte : bytes) {
    const unsigned value = (~static_cast<unsigned>(static_cast<unsigned char>(byte)) & 0xFFU) + carry;
    byte = static_cast<char>(value & 0xFFU);
    carry = value >> 8;
  }
}

}  // namespace

bool operator==(const Data& a, const Data& b) {
  if (a.value.index() != b.value.index()) return false;
  if (const auto* real = std::get_if<double>(&a.value)) {
    return std::bit_cast<std::uint64_t>(*real) == std::bit_cast<std::uint64_t>(std::get<double>(b.value));
  }
  if (const auto* boolean = std::get_if<bool>(&a.value)) return *boolean == std::get<bool>(b.value);
  if (const auto* integer = a.as_integer()) return *integer == *b.as_integer();
  if (const auto* big = std::get_if<BigInteger>(&a.value)) return *big == std::get<BigInteger>(b.value);
  if (const auto* text = a.as_text()) return *text == *b.as_text();
  if (const auto* list = std::get_if<std::vector<Data>>(&a.value)) return *list == std::get<std::vector<Data>>(b.value);
  if (const auto* tuple = std::get_if<DataTuple>(&a.value)) return tuple->items == std::get<DataTuple>(b.value).items;
  if (const auto* dict = std::get_if<DataDict>(&a.value)) return same_dict(*dict, std::get<DataDict>(b.value));
  return true;
}

bool same_fields(const Fields& a, const Fields& b) {
  return a.size() == b.size() && std::all_of(a.begin(), a.end(), [&](const auto& field) {
           return std::find(b.begin(), b.end(), field) != b.end();
         });
}

const Data* find(const Fields& fields, std::string_view name) {
  for (const auto& [key, value] : fields) {
    if (const std::string* text = key.as_text(); text != nullptr && *text == name) return &value;
  }
  return nullptr;
}

std::string decimal(const BigInteger& integer) {
  std::string bytes = integer.bytes;
  const bool negative = !bytes.empty() && (static_cast<unsigned char>(bytes.back()) & 0x80) != 0;
  if (negative) negate(bytes);
  // Nine digits at a time out of the 32-bit words, the most significant first.
  std::vector<std::uint32_t> words((bytes.size() + 3) / 4);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    words[i / 4] |= static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[i])) << (8 * (i % 4));
  }
  std::string digits;
  while (!words.empty()) {
    std::uint64_t remainder = 0;
    for (std::size_t i = words.size(); i-- > 0;) {
      const std::uint64_t value = remainder << 32 | words[i];
      words[i] = static_cast<std::uint32_t>(value / 1'000'000'000);
      remainder = value % 1'000'000'000;
    }
    while (!words.empty() && words.back() == 0) words.pop_back();
    for (int i = 0; i < 9 && (remainder != 0 || !words.empty()); ++i, remainder /= 10) {
      digits += static_cast<char>('0' + remainder % 10);
    }
  }
  if (digits.empty()) digits += '0';
  if (negative) digits += '-';
  std::reverse(digits.begin(), digits.end());
  return digits;
}

bool parse_decimal(std::string_view text, Data& result) {
  std::int64_t small = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), small);
  if (error == std::errc() && end == text.data() + text.size()) {
    result.value = small;
    return true;
  }
  const bool negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  if (text.empty() || text.find_first_not_of("0123456789") != std::string_view::npos) return false;
  std::vector<std::uint32_t> words;
  for (const char digit : text) {
    std::uint64_t carry = static_cast<std::uint64_t>(digit - '0');
    for (std::uint32_t& word : words) {
      carry += std::uint64_t{word} * 10;
      word = static_cast<std::uint32_t>(carry);
      carry >>= 32;
    }
    if (carry != 0) words.push_back(static_cast<std::uint32_t>(carry));
  }
  std::string bytes;
  for (const std::uint32_t word : words) {
    for (int i = 0; i < 4; ++i) bytes += static_cast<char>(word >> (8 * i) & 0xFF);
  }
  bytes += '\0';  // the sign
  if (negative) negate(bytes);
  result = integer_from_bytes(bytes);
  return true;
}

Data integer_from_bytes(std::string_view bytes) {
  std::string shortest(bytes);
  shorten(shortest);
  if (shortest.size() > 8) return {BigInteger{std::move(shortest)}};
  std::uint64_t value = !shortest.empty() && (static_cast<unsigned char>(shortest.back()) & 0x80) != 0 ? ~0ULL : 0;
  for (std::size_t i = shortest.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(shortest[i]);
  return {static_cast<std::int64_t>(value)};
}

}  // namespace warpmeter::reports::snapshot
