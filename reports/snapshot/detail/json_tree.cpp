#include <algorithm>

#include <nlohmann/json.hpp>

#include "reports/detail/utf8.hpp"
#include "reports/snapshot/data.hpp"
#include "reports/snapshot/detail/data_tree.hpp"

namespace warpmeter::reports::snapshot::detail {
namespace {

using nlohmann::json;

/// Builds the tree from the parser's events.
class Builder {
 public:
  Builder(std::size_t nesting, DataTree& tree) : nesting_(nesting), tree_(tree) {}

  bool null() { return put(DataTree::none()); }
  bool boolean(bool value) { return put(DataTree::boolean(value)); }
  bool number_integer(std::int64_t value) { return put(tree_.integer(value)); }
  bool number_unsigned(std::uint64_t value) {
    std::string bytes;
    for (int i = 0; i < 8; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xFF);
    return put(tree_.big(bytes += '\0'));
  }
  bool number_float(double value, const std::string& text) {
    // An integer beyond 64 bits comes here too.
    Data integer;
    if (text.size() <= 4300 && parse_decimal(text, integer)) {
      return put(tree_.big(std::get<BigInteger>(integer.value).bytes));
    }
    return put(tree_.real(value));
  }
  bool string(std::string& value) { return put(tree_.text(value)); }
  bool binary(json::binary_t&) { return false; }
  bool start_object(std::size_t) { return open(Word::Kind::dict); }
  bool start_array(std::size_t) { return open(Word::Kind::list); }
  bool key(std::string& name) {
    scratch_.push_back(tree_.text(name));
    return true;
  }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool parse_error(std::size_t position, const std::string&, const json::exception& error) {
    std::string_view what = error.what();
    if (const std::size_t from = what.find(": "); from != std::string_view::npos) what.remove_prefix(from + 2);
    throw TreeError("byte " + std::to_string(position) + ": " + std::string(what.substr(0, 120)));
  }

  Word result;

 private:
  struct Level {
    Word::Kind kind;
    std::size_t begin;  ///< of its items in scratch_
  };
  bool open(Word::Kind kind) {
    if (levels_.size() >= nesting_) throw TreeError("nested too deeply");
    levels_.push_back({kind, scratch_.size()});
    return true;
  }
  bool close() {
    const Level level = levels_.back();
    levels_.pop_back();
    const Word made = tree_.container(
        level.kind, std::span<const Word>(scratch_.data() + level.begin, scratch_.size() - level.begin));
    scratch_.resize(level.begin);
    return put(made);
  }
  bool put(Word word) {
    if (levels_.empty()) {
      result = word;
    } else {
      scratch_.push_back(word);
    }
    return true;
  }

  std::size_t nesting_;
  DataTree& tree_;
  std::vector<Level> levels_;
  std::vector<Word> scratch_;  ///< items of the open containers, one after the other
};

}  // namespace

Word read_json(std::string_view text, std::size_t nesting, DataTree& tree) {
  // The parser takes a NUL byte for the end, whatever follows.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    throw TreeError("byte " + std::to_string(nul) + ": a NUL byte in a JSON text");
  }
  Builder builder(nesting, tree);
  if (!json::sax_parse(text.begin(), text.end(), &builder)) throw TreeError("not JSON");
  return builder.result;
}

}  // namespace warpmeter::reports::snapshot::detail
