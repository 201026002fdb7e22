#include <ostream>

#include "reports/detail/json_text.hpp"
#include "reports/snapshot/detail/fields_of.hpp"
#include "reports/snapshot/writer.hpp"

namespace warpmeter::reports::snapshot {
namespace {

class JsonOut {
 public:
  JsonOut(const Snapshot& snapshot, std::ostream& out) : snapshot_(snapshot), out_(out) {}

  void finish() {
    buffer_ += '\n';
    flush();
  }

  void begin_dict() { open('{'); }
  void end_dict() { close('}'); }
  void begin_list() { open('['); }
  void end_list() { close(']'); }
  void next() {
    if (!first_) buffer_ += ", ";
    first_ = false;
    if (buffer_.size() >= kFlush && held_ == 0) flush();
  }
  void key(std::string_view text) {
    next();
    reports::detail::append_json(buffer_, text);
    buffer_ += ": ";
  }
  void field(const Data& name) {
    if (const std::string* text_key = name.as_text()) return key(*text_key);
    // JSON's keys are strings: what is none is written as the text of its JSON.
    std::string text_of;
    std::swap(text_of, buffer_);
    const bool first = first_;
    ++held_;
    data(name);
    --held_;
    std::swap(text_of, buffer_);
    first_ = first;
    key(text_of);
  }
  void literal(std::string_view text) { reports::detail::append_json(buffer_, text); }
  void text(TextId id) { literal(snapshot_.texts[id]); }
  void boolean(bool value) { buffer_ += value ? "true" : "false"; }
  void integer(std::int64_t value) { buffer_ += std::to_string(value); }
  void count(std::uint64_t value) { buffer_ += std::to_string(value); }
  void pair(std::int64_t a, std::int64_t b) {
    buffer_ += '[';
    integer(a);
    buffer_ += ", ";
    integer(b);
    buffer_ += ']';
  }
  void stack(StackId id) {
    begin_list();
    for (const std::uint32_t index : snapshot_.stacks[id]) {
      next();
      detail::Walk<JsonOut>(snapshot_, *this).write(snapshot_.stacks.frame(index));
    }
    end_list();
  }
  void data(const Data& value) {
    const auto& v = value.value;
    if (const auto* boolean_value = std::get_if<bool>(&v)) {
      boolean(*boolean_value);
    } else if (const auto* small = std::get_if<std::int64_t>(&v)) {
      integer(*small);
    } else if (const auto* large = std::get_if<BigInteger>(&v)) {
      buffer_ += decimal(*large);
    } else if (const auto* number = std::get_if<double>(&v)) {
      real(*number);
    } else if (const auto* words = std::get_if<std::string>(&v)) {
      literal(*words);
    } else if (const auto* items = std::get_if<std::vector<Data>>(&v)) {
      list(*items);
    } else if (const auto* tuple = std::get_if<DataTuple>(&v)) {
      list(tuple->items);
    } else if (const auto* dict = std::get_if<DataDict>(&v)) {
      begin_dict();
      for (std::size_t i = 0; i < dict->keys.size(); ++i) {
        field(dict->keys[i]);
        data(dict->values[i]);
      }
      end_dict();
    } else {
      buffer_ += "null";
    }
  }

 private:
  static constexpr std::size_t kFlush = std::size_t{1} << 20;

  void open(char bracket) {
    buffer_ += bracket;
    first_ = true;
  }
  void close(char bracket) {
    buffer_ += bracket;
    first_ = false;
  }
  void list(const std::vector<Data>& items) {
    begin_list();
    for (const Data& each : items) {
      next();
      data(each);
    }
    end_list();
  }
  void real(double number) {
    const std::size_t before = buffer_.size();
    reports::detail::append_json(buffer_, number);
    // A float that is whole must not come back as an integer.
    if (buffer_.find_first_of(".eni", before) == std::string::npos) buffer_ += ".0";
  }
  void flush() {
    out_.write(buffer_.data(), static_cast<std::streamsize>(buffer_.size()));
    buffer_.clear();
  }

  const Snapshot& snapshot_;
  std::ostream& out_;
  std::string buffer_;
  int held_ = 0;       ///< the buffer is a key to be, not the file's
  bool first_ = true;  ///< no item yet in the innermost container
};

}  // namespace

void write_json(const Snapshot& snapshot, std::ostream& out) {
  JsonOut json(snapshot, out);
  detail::Walk<JsonOut>(snapshot, json).run();
  json.finish();
}

}  // namespace warpmeter::reports::snapshot
