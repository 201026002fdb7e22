#include <bit>
#include <ostream>
#include <stdexcept>

#include "reports/snapshot/detail/fields_of.hpp"
#include "reports/snapshot/detail/pickle_opcodes.hpp"
#include "reports/snapshot/writer.hpp"

namespace warpmeter::reports::snapshot {
namespace {

using detail::Opcode;
using detail::Walk;

/// Writes values as opcodes. Containers are opened with MARK and filled every kBatch items.
class PickleOut {
 public:
  PickleOut(const Snapshot& snapshot, std::ostream& out, int protocol)
      : snapshot_(snapshot), out_(out), protocol_(protocol) {
    text_memo_.resize(snapshot.texts.size(), kNotYet);
    stack_memo_.resize(snapshot.stacks.size(), kNotYet);
    frame_memo_.resize(snapshot.stacks.frame_count(), kNotYet);
    put(Opcode::proto);
    put_byte(static_cast<unsigned>(protocol));
  }

  void finish() {
    put(Opcode::stop);
    flush();
  }

  // What Walk calls

  void begin_dict() { open(Opcode::empty_dict); }
  void end_dict() { close(Opcode::setitems); }
  void begin_list() { open(Opcode::empty_list); }
  void end_list() { close(Opcode::appends); }
  void next() { item(Opcode::appends); }
  void key(std::string_view text) {
    item(Opcode::setitems);
    literal(text);
  }
  void field(const Data& key) {
    item(Opcode::setitems);
    data(key);
  }

  void literal(std::string_view text) {
    // Literals are few and stand at fixed places of the program, so their address names them.
    for (const auto& [known, memo] : literals_) {
      if (known.data() == text.data() && known.size() == text.size()) return get(memo);
    }
    utf8(text);
    literals_.emplace_back(text, memoize());
  }
  void text(TextId id) {
    if (text_memo_[id] != kNotYet) return get(text_memo_[id]);
    utf8(snapshot_.texts[id]);
    text_memo_[id] = memoize();
  }
  void boolean(bool value) { put(value ? Opcode::newtrue : Opcode::newfalse); }
  void integer(std::int64_t value) {
    if (value >= 0 && value < 0x100) {
      put(Opcode::binint1);
      return put_byte(static_cast<unsigned>(value));
    }
    if (value >= 0 && value < 0x10000) {
      put(Opcode::binint2);
      return little_endian(static_cast<std::uint64_t>(value), 2);
    }
    if (value >= INT32_MIN && value <= INT32_MAX) {
      put(Opcode::binint);
      return little_endian(static_cast<std::uint64_t>(value), 4);
    }
    // The fewest bytes that keep the sign.
    std::size_t width = 8;
    while (width > 1 && (value >> (8 * width - 9) == 0 || value >> (8 * width - 9) == -1)) --width;
    put(Opcode::long1);
    put_byte(static_cast<unsigned>(width));
    little_endian(static_cast<std::uint64_t>(value), width);
  }
  void count(std::uint64_t value) {
    if (value <= INT64_MAX) return integer(static_cast<std::int64_t>(value));
    put(Opcode::long1);
    put_byte(9);
    little_endian(value, 8);
    put_byte(0);
  }
  void pair(std::int64_t a, std::int64_t b) {
    integer(a);
    integer(b);
    put(Opcode::tuple2);
  }
  void stack(StackId id) {
    if (stack_memo_[id] != kNotYet) return get(stack_memo_[id]);
    put(Opcode::empty_list);
    stack_memo_[id] = memoize();
    levels_.push_back({});
    for (const std::uint32_t index : snapshot_.stacks[id]) {
      next();
      if (frame_memo_[index] != kNotYet) {
        get(frame_memo_[index]);
        continue;
      }
      Walk<PickleOut>(snapshot_, *this).write(snapshot_.stacks.frame(index));
      frame_memo_[index] = memoize();
    }
    end_list();
  }
  void data(const Data& data);

 private:
  static constexpr std::uint32_t kNotYet = 0xFFFFFFFF;
  static constexpr std::size_t kBatch = 1000;
  static constexpr std::size_t kFlush = std::size_t{1} << 20;

  void open(Opcode empty) {
    put(empty);
    levels_.push_back({});
  }
  /// Before an item (or a dict's key): the batch so far is put into its container when it is full.
  void item(Opcode fill) {
    std::size_t& items = levels_.back();
    if (items == kBatch) {
      put(fill);
      items = 0;
    }
    if (items == 0) put(Opcode::mark);
    ++items;
  }
  void close(Opcode fill) {
    if (levels_.back() != 0) put(fill);
    levels_.pop_back();
  }

  void put_byte(unsigned byte) { buffer_ += static_cast<char>(byte); }
  void put(Opcode code) {
    put_byte(static_cast<unsigned>(code));
    if (buffer_.size() >= kFlush) flush();
  }
  void little_endian(std::uint64_t value, std::size_t width) {
    for (std::size_t i = 0; i < width; ++i) put_byte(static_cast<unsigned>(value >> (8 * i) & 0xFF));
  }
  void flush() {
    out_.write(buffer_.data(), static_cast<std::streamsize>(buffer_.size()));
    buffer_.clear();
  }
  void utf8(std::string_view text) {
    if (protocol_ >= 4 && text.size() < 0x100) {
      put(Opcode::short_binunicode);
      put_byte(static_cast<unsigned>(text.size()));
    } else {
      put(Opcode::binunicode);
      little_endian(text.size(), 4);
    }
    buffer_ += text;
  }
  void big(const std::string& bytes) {
    if (bytes.size() < 0x100) {
      put(Opcode::long1);
      put_byte(static_cast<unsigned>(bytes.size()));
    } else {
      put(Opcode::long4);
      little_endian(bytes.size(), 4);
    }
    buffer_ += bytes;
  }
  void real(double value) {
    put(Opcode::binfloat);
    const auto bits = std::bit_cast<std::uint64_t>(value);
    for (std::size_t i = 8; i-- > 0;) put_byte(static_cast<unsigned>(bits >> (8 * i) & 0xFF));
  }

  /// Remembers the value on top of the stack and returns its number.
  std::uint32_t memoize() {
    if (protocol_ >= 4) {
      put(Opcode::memoize);
    } else if (memos_ < 0x100) {
      put(Opcode::binput);
      put_byte(memos_);
    } else {
      put(Opcode::long_binput);
      little_endian(memos_, 4);
    }
    return memos_++;
  }
  void get(std::uint32_t memo) {
    if (memo < 0x100) {
      put(Opcode::binget);
      put_byte(memo);
    } else {
      put(Opcode::long_binget);
      little_endian(memo, 4);
    }
  }

  const Snapshot& snapshot_;
  std::ostream& out_;
  int protocol_;
  std::string buffer_;
  std::vector<std::size_t> levels_;  ///< items since the last mark, of each open container
  std::vector<std::uint32_t> text_memo_, stack_memo_, frame_memo_;
  std::vector<std::pair<std::string_view, std::uint32_t>> literals_;
  std::uint32_t memos_ = 0;
};

void PickleOut::data(const Data& value) {
  const auto& v = value.value;
  if (const auto* boolean_value = std::get_if<bool>(&v)) {
    boolean(*boolean_value);
  } else if (const auto* small = std::get_if<std::int64_t>(&v)) {
    integer(*small);
  } else if (const auto* large = std::get_if<BigInteger>(&v)) {
    big(large->bytes);
  } else if (const auto* number = std::get_if<double>(&v)) {
    real(*number);
  } else if (const auto* words = std::get_if<std::string>(&v)) {
    utf8(*words);
  } else if (const auto* list = std::get_if<std::vector<Data>>(&v)) {
    begin_list();
    for (const Data& each : *list) {
      next();
      data(each);
    }
    end_list();
  } else if (const auto* tuple = std::get_if<DataTuple>(&v)) {
    const std::size_t size = tuple->items.size();
    if (size > 3) put(Opcode::mark);
    for (const Data& each : tuple->items) data(each);
    constexpr Opcode kTuples[] = {Opcode::empty_tuple, Opcode::tuple1, Opcode::tuple2, Opcode::tuple3};
    put(size > 3 ? Opcode::tuple : kTuples[size]);
  } else if (const auto* dict = std::get_if<DataDict>(&v)) {
    begin_dict();
    for (std::size_t i = 0; i < dict->keys.size(); ++i) {
      field(dict->keys[i]);
      data(dict->values[i]);
    }
    end_dict();
  } else {
    put(Opcode::none);
  }
}

}  // namespace

void write_pickle(const Snapshot& snapshot, std::ostream& out, int protocol) {
  if (protocol < 2 || protocol > 4) throw std::logic_error("pickles are written in protocol 2 to 4");
  PickleOut pickle(snapshot, out, protocol);
  Walk<PickleOut>(snapshot, pickle).run();
  pickle.finish();
}

}  // namespace warpmeter::reports::snapshot
