#pragma once

#include <cstdint>
#include <string_view>

namespace warpmeter::reports::snapshot::detail {

/// Opcodes of pickles that make data. Source: Lib/pickletools.py.
enum class Opcode : std::uint8_t {
  mark = '(',
  stop = '.',
  pop = '0',
  pop_mark = '1',
  dup = '2',
  float_text = 'F',
  int_text = 'I',
  binint = 'J',
  binint1 = 'K',
  long_text = 'L',
  binint2 = 'M',
  none = 'N',
  unicode = 'V',
  binunicode = 'X',
  append = 'a',
  dict = 'd',
  empty_dict = '}',
  appends = 'e',
  get = 'g',
  binget = 'h',
  long_binget = 'j',
  list = 'l',
  empty_list = ']',
  put = 'p',
  binput = 'q',
  long_binput = 'r',
  setitem = 's',
  tuple = 't',
  empty_tuple = ')',
  setitems = 'u',
  binfloat = 'G',
  proto = 0x80,
  tuple1 = 0x85,
  tuple2 = 0x86,
  tuple3 = 0x87,
  newtrue = 0x88,
  newfalse = 0x89,
  long1 = 0x8a,
  long4 = 0x8b,
  short_binunicode = 0x8c,
  binunicode8 = 0x8d,
  memoize = 0x94,
  frame = 0x95,
};

/// The name of an opcode that exists but is not data, and what is wrong with it; empty name: no opcode at all.
struct RefusedOpcode {
  std::string_view name;
  std::string_view why;
};
[[nodiscard]] RefusedOpcode refused_opcode(std::uint8_t code) noexcept;

}  // namespace warpmeter::reports::snapshot::detail
