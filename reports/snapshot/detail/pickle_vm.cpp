#include <bit>
#include <charconv>
#include <unordered_map>

#include "reports/detail/utf8.hpp"
#include "reports/snapshot/data.hpp"
#include "reports/snapshot/detail/data_tree.hpp"
#include "reports/snapshot/detail/pickle_opcodes.hpp"

namespace warpmeter::reports::snapshot::detail {

RefusedOpcode refused_opcode(std::uint8_t code) noexcept {
  constexpr std::string_view kImports = "would import and run code";
  constexpr std::string_view kNotData = "is no dict, list, tuple, str, int, float, bool or None";
  switch (code) {
    case 'c':
      return {"GLOBAL", kImports};
    case 0x93:
      return {"STACK_GLOBAL", kImports};
    case 'R':
      return {"REDUCE", kImports};
    case 'b':
      return {"BUILD", kImports};
    case 'i':
      return {"INST", kImports};
    case 'o':
      return {"OBJ", kImports};
    case 0x81:
      return {"NEWOBJ", kImports};
    case 0x92:
      return {"NEWOBJ_EX", kImports};
    case 0x82:
      return {"EXT1", kImports};
    case 0x83:
      return {"EXT2", kImports};
    case 0x84:
      return {"EXT4", kImports};
    case 'P':
      return {"PERSID", kImports};
    case 'Q':
      return {"BINPERSID", kImports};
    case 'S':
      return {"STRING", kNotData};
    case 'T':
      return {"BINSTRING", kNotData};
    case 'U':
      return {"SHORT_BINSTRING", kNotData};
    case 'B':
      return {"BINBYTES", kNotData};
    case 'C':
      return {"SHORT_BINBYTES", kNotData};
    case 0x8e:
      return {"BINBYTES8", kNotData};
    case 0x8f:
      return {"EMPTY_SET", kNotData};
    case 0x90:
      return {"ADDITEMS", kNotData};
    case 0x91:
      return {"FROZENSET", kNotData};
    case 0x96:
      return {"BYTEARRAY8", kNotData};
    case 0x97:
      return {"NEXT_BUFFER", kNotData};
    case 0x98:
      return {"READONLY_BUFFER", kNotData};
    default:
      return {"", ""};
  }
}

namespace {

/// Digits of an integer: as many as Python converts by default. Converting takes the square of their number.
constexpr std::size_t kMaxDigits = 4300;
constexpr std::size_t kMaxIntegerBytes = 1788;  // of that many digits
constexpr std::size_t kMaxMarks = 4096;
const Word kNotYet(Word::Kind::special, 3);              // no value
constexpr std::size_t kMaxStack = std::size_t{1} << 24;  // values not yet in a container

using Kind = Word::Kind;

/// Length of the UTF-8 sequence at the start, surrogates (which Python writes as they are) among them; 0: none.
std::size_t sequence(std::string_view text) {
  std::size_t bad = 0;
  if (const std::size_t length = reports::detail::utf8_length(text, bad); length != 0) return length;
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const bool surrogate =
      text.size() >= 3 && byte(0) == 0xED && byte(1) >= 0xA0 && byte(1) <= 0xBF && byte(2) >= 0x80 && byte(2) <= 0xBF;
  return surrogate ? 3 : 0;
}

void append_utf8(std::string& out, std::uint32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0 | code >> 6);
    out += static_cast<char>(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0 | code >> 12);
    out += static_cast<char>(0x80 | (code >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | code >> 18);
    out += static_cast<char>(0x80 | (code >> 12 & 0x3F));
    out += static_cast<char>(0x80 | (code >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
  }
}

/// The machine: a stack of values, marks in it, a memo. It makes containers and never looks into one.
class Machine {
 public:
  Machine(std::string_view bytes, DataTree& tree) : bytes_(bytes), tree_(tree) {}

  Word run() {
    while (true) {
      start_ = at_;
      if (at_ == bytes_.size()) fail("the file ends before the pickle does");
      const auto code = static_cast<std::uint8_t>(bytes_[at_++]);
      if (static_cast<Opcode>(code) == Opcode::stop) {
        if (stack_.empty() || !marks_.empty()) fail("the pickle ends within a value");
        return stack_.back();
      }
      step(code);
    }
  }

 private:
  void step(std::uint8_t code);

  [[noreturn]] void fail(std::string_view what) const {
    throw TreeError("byte " + std::to_string(start_) + ": " + std::string(what));
  }
  [[noreturn]] void refuse(std::uint8_t code);

  // Arguments

  std::string_view take(std::uint64_t count) {
    if (count > bytes_.size() - at_) fail("the file ends before the pickle does");
    const std::string_view taken = bytes_.substr(at_, count);
    at_ += count;
    return taken;
  }
  std::uint64_t number(std::size_t width) {
    const std::string_view bytes = take(width);
    std::uint64_t value = 0;
    for (std::size_t i = width; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
    return value;
  }
  std::string_view line() {
    const std::size_t end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) fail("the file ends before the pickle does");
    return take(end + 1 - at_).substr(0, end - start_ - 1);
  }

  // The stack

  void push(Word word) {
    if (stack_.size() >= kMaxStack) fail("more than 16 million values outside of a container");
    stack_.push_back(word);
  }
  [[nodiscard]] std::size_t bottom() const { return marks_.empty() ? 0 : marks_.back(); }
  void need(std::size_t count) const {
    if (stack_.size() - bottom() < count) fail("a value is missing on the stack");
  }
  Word pop() {
    need(1);
    const Word word = stack_.back();
    stack_.pop_back();
    return word;
  }
  std::size_t pop_mark() {
    if (marks_.empty()) fail("a mark is missing on the stack");
    const std::size_t mark = marks_.back();
    marks_.pop_back();
    return mark;
  }
  [[nodiscard]] std::span<const Word> above(std::size_t mark) const {
    return {stack_.data() + mark, stack_.size() - mark};
  }
  /// Appends what stands above `mark` to the container below it.
  void append_above(std::size_t mark, Kind kind) {
    if (mark == bottom() || stack_[mark - 1].kind() != kind) {
      fail(kind == Kind::list ? "appends to what is no list" : "sets items of what is no dict");
    }
    const auto items = above(mark);
    if (kind == Kind::dict && items.size() % 2 != 0) fail("a key without its value");
    tree_.append(stack_[mark - 1], items);
    stack_.resize(mark);
  }
  void container_above(std::size_t mark, Kind kind) {
    const auto items = above(mark);
    if (kind == Kind::dict && items.size() % 2 != 0) fail("a key without its value");
    const Word made = tree_.container(kind, items);
    stack_.resize(mark);
    push(made);
  }
  void tuple_of(std::size_t count) {
    need(count);
    container_above(stack_.size() - count, Kind::tuple);
  }

  // The memo

  void put(std::uint64_t index) {
    need(1);
    const Word value = stack_.back();
    // Python numbers from 0 without gaps; a pickle that does not must not cost more than what it says.
    constexpr std::uint64_t kSlack = 1024;
    if (index < memo_.size()) {
      memo_[index] = value;
    } else if (index < memo_.size() + kSlack) {
      tree_.charge((index + 1 - memo_.size()) * sizeof(memo_.front()));
      memo_.resize(index + 1, kNotYet);
      memo_[index] = value;
    } else {
      tree_.charge(64);
      sparse_memo_[index] = value;
    }
  }
  void get(std::uint64_t index) {
    Word value = index < memo_.size() ? memo_[index] : kNotYet;
    if (value == kNotYet && !sparse_memo_.empty()) {
      const auto found = sparse_memo_.find(index);
      if (found != sparse_memo_.end()) value = found->second;
    }
    if (value == kNotYet) fail("value " + std::to_string(index) + " is used before it is remembered");
    push(value);
  }
  std::uint64_t index_line() {
    const std::string_view text = line();
    std::uint64_t index = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), index);
    if (error != std::errc() || end != text.data() + text.size()) fail("not a number of a remembered value");
    return index;
  }

  // Scalars

  void integer_text(bool is_long) {
    std::string_view text = line();
    if (!is_long && (text == "00" || text == "01")) return push(DataTree::boolean(text == "01"));
    if (is_long && text.ends_with('L')) text.remove_suffix(1);
    if (text.size() > kMaxDigits) fail("an integer of more than 4300 digits");
    Data value;
    if (!parse_decimal(text, value)) fail("not an integer");
    if (const std::int64_t* small = value.as_integer()) return push(tree_.integer(*small));
    push(tree_.big(std::get<BigInteger>(value.value).bytes));
  }
  void integer_bytes(std::uint64_t count) {
    if (count > kMaxIntegerBytes) fail("an integer of more than 4300 digits");
    const std::string_view bytes = take(count);
    if (count > sizeof(std::uint64_t)) return push(tree_.big(bytes));
    std::uint64_t value = count != 0 && (static_cast<unsigned char>(bytes.back()) & 0x80) != 0 ? ~0ULL : 0;
    for (std::size_t i = count; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
    push(tree_.integer(static_cast<std::int64_t>(value)));
  }
  void float_text() {
    const std::string_view text = line();
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc::invalid_argument || end != text.data() + text.size()) fail("not a float");
    push(tree_.real(value));
  }
  void float_bytes() {
    const std::string_view bytes = take(8);
    std::uint64_t bits = 0;
    for (const char byte : bytes) bits = bits << 8 | static_cast<unsigned char>(byte);
    push(tree_.real(std::bit_cast<double>(bits)));
  }
  void utf8(std::uint64_t count) {
    const std::string_view text = take(count);
    std::size_t plain = 0;
    while (plain < text.size() && static_cast<unsigned char>(text[plain]) < 0x80) ++plain;
    for (std::string_view rest = text.substr(plain); !rest.empty();) {
      const std::size_t length = sequence(rest);
      if (length == 0) fail("a str that is not UTF-8");
      rest.remove_prefix(length);
    }
    push(tree_.text(text));
  }
  /// Latin-1 with \uXXXX and \UXXXXXXXX, up to the line's end.
  void escaped_text() {
    const std::string_view text = line();
    std::string out;
    out.reserve(text.size());
    for (std::size_t i = 0; i < text.size(); ++i) {
      const std::size_t digits = text[i] != '\\' || i + 1 == text.size() ? 0
                                 : text[i + 1] == 'u'                    ? 4
                                 : text[i + 1] == 'U'                    ? 8
                                                                         : 0;
      if (digits == 0) {
        append_utf8(out, static_cast<unsigned char>(text[i]));
        continue;
      }
      std::uint32_t code = 0;
      const std::string_view hex = text.substr(i + 2, digits);
      const auto [end, error] = std::from_chars(hex.data(), hex.data() + hex.size(), code, 16);
      if (hex.size() != digits || error != std::errc() || end != hex.data() + digits || code > 0x10FFFF) {
        fail("a str with a broken escape");
      }
      append_utf8(out, code);
      i += 1 + digits;
    }
    push(tree_.text(out));
  }

  std::string_view bytes_;
  DataTree& tree_;
  std::size_t at_ = 0;
  std::size_t start_ = 0;  ///< of the opcode that runs
  std::vector<Word> stack_;
  std::vector<std::size_t> marks_;
  std::vector<Word> memo_;  ///< kNotYet where a number was left out
  std::unordered_map<std::uint64_t, Word> sparse_memo_;
};

void Machine::refuse(std::uint8_t code) {
  const auto [name, why] = refused_opcode(code);
  if (name.empty()) fail("opcode " + std::to_string(code) + " does not exist: not a pickle, or a damaged one");
  std::string what = "opcode " + std::string(name);
  if (name == "GLOBAL") {
    const std::size_t end = bytes_.find('\n', at_);
    const std::size_t last = end == std::string_view::npos ? end : bytes_.find('\n', end + 1);
    if (last != std::string_view::npos && last - at_ < 100) {
      what += " (" + std::string(bytes_.substr(at_, end - at_)) + "." +
              std::string(bytes_.substr(end + 1, last - end - 1)) + ")";
    }
  }
  fail(what + " " + std::string(why) + "; a snapshot is data alone: refused");
}

void Machine::step(std::uint8_t code) {
  switch (static_cast<Opcode>(code)) {
    case Opcode::proto:
      if (const std::uint64_t protocol = number(1); protocol > 5) {
        fail("pickle protocol " + std::to_string(protocol) + "; known are 0 to 5");
      }
      return;
    case Opcode::frame:
      if (number(8) > bytes_.size() - at_) fail("the file ends before the pickle does");
      return;
    case Opcode::mark:
      if (marks_.size() >= kMaxMarks) fail("nested too deeply");
      return marks_.push_back(stack_.size());
    case Opcode::pop:
      if (!marks_.empty() && marks_.back() == stack_.size()) return marks_.pop_back();
      return static_cast<void>(pop());
    case Opcode::pop_mark:
      return stack_.resize(pop_mark());
    case Opcode::dup:
      need(1);
      return push(stack_.back());

    case Opcode::none:
      return push(DataTree::none());
    case Opcode::newtrue:
      return push(DataTree::boolean(true));
    case Opcode::newfalse:
      return push(DataTree::boolean(false));
    case Opcode::int_text:
      return integer_text(false);
    case Opcode::long_text:
      return integer_text(true);
    case Opcode::binint:
      return push(tree_.integer(static_cast<std::int32_t>(number(4))));
    case Opcode::binint1:
      return push(tree_.integer(static_cast<std::int64_t>(number(1))));
    case Opcode::binint2:
      return push(tree_.integer(static_cast<std::int64_t>(number(2))));
    case Opcode::long1:
      return integer_bytes(number(1));
    case Opcode::long4:
      return integer_bytes(number(4));
    case Opcode::float_text:
      return float_text();
    case Opcode::binfloat:
      return float_bytes();
    case Opcode::unicode:
      return escaped_text();
    case Opcode::short_binunicode:
      return utf8(number(1));
    case Opcode::binunicode:
      return utf8(number(4));
    case Opcode::binunicode8:
      return utf8(number(8));

    case Opcode::empty_list:
      return push(tree_.container(Kind::list));
    case Opcode::empty_dict:
      return push(tree_.container(Kind::dict));
    case Opcode::empty_tuple:
      return push(tree_.container(Kind::tuple));
    case Opcode::list:
      return container_above(pop_mark(), Kind::list);
    case Opcode::dict:
      return container_above(pop_mark(), Kind::dict);
    case Opcode::tuple:
      return container_above(pop_mark(), Kind::tuple);
    case Opcode::tuple1:
      return tuple_of(1);
    case Opcode::tuple2:
      return tuple_of(2);
    case Opcode::tuple3:
      return tuple_of(3);
    case Opcode::append:
      need(2);
      return append_above(stack_.size() - 1, Kind::list);
    case Opcode::setitem:
      need(3);
      return append_above(stack_.size() - 2, Kind::dict);
    case Opcode::appends:
      return append_above(pop_mark(), Kind::list);
    case Opcode::setitems:
      return append_above(pop_mark(), Kind::dict);

    case Opcode::memoize:
      return put(memo_.size());
    case Opcode::put:
      return put(index_line());
    case Opcode::binput:
      return put(number(1));
    case Opcode::long_binput:
      return put(number(4));
    case Opcode::get:
      return get(index_line());
    case Opcode::binget:
      return get(number(1));
    case Opcode::long_binget:
      return get(number(4));
    case Opcode::stop:
      return;  // run() has seen to it
  }
  refuse(code);
}

}  // namespace

Word read_pickle(std::string_view bytes, DataTree& tree) {
  return Machine(bytes, tree).run();
}

}  // namespace warpmeter::reports::snapshot::detail
