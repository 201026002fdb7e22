#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "reports/snapshot/texts.hpp"

namespace warpmeter::reports::snapshot::detail {

/// Why a file cannot be read; the reader puts its name before it.
class TreeError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// One value in eight bytes: three bits of kind, the rest the value itself or an index into the tree's tables.
class Word {
 public:
  enum class Kind : std::uint8_t { special, integer, real, text, list, tuple, dict, big };

  Word() = default;  ///< None
  Word(Kind kind, std::uint64_t payload) : bits_(payload << 3 | static_cast<std::uint64_t>(kind)) {}
  [[nodiscard]] Kind kind() const { return static_cast<Kind>(bits_ & 7); }
  [[nodiscard]] std::uint64_t payload() const { return bits_ >> 3; }
  [[nodiscard]] std::int64_t small() const { return static_cast<std::int64_t>(bits_) >> 3; }
  [[nodiscard]] bool is_container() const { return kind() >= Kind::list && kind() <= Kind::dict; }
  [[nodiscard]] std::uint64_t bits() const { return bits_; }
  friend bool operator==(Word a, Word b) { return a.bits_ == b.bits_; }

 private:
  std::uint64_t bits_ = 0;
};

inline constexpr std::uint64_t kNone = 0, kFalse = 1, kTrue = 2;  ///< payloads of Kind::special

/// The values of a file, any shape: a graph, since a pickle may use one twice or within itself. Bounded in memory.
class DataTree {
 public:
  explicit DataTree(std::size_t memory_limit) : limit_(memory_limit) {}

  [[nodiscard]] static Word none() { return {Word::Kind::special, kNone}; }
  [[nodiscard]] static Word boolean(bool value) { return {Word::Kind::special, value ? kTrue : kFalse}; }
  [[nodiscard]] Word integer(std::int64_t value);
  [[nodiscard]] Word big(std::string_view twos_complement);  ///< least significant byte first; of any size
  [[nodiscard]] Word real(double value);
  [[nodiscard]] Word text(std::string_view text);
  /// An empty container, or one of `items` (a dict's: key, value, key, value, ...).
  [[nodiscard]] Word container(Word::Kind kind, std::span<const Word> items = {});
  void append(Word container, std::span<const Word> items);
  /// Counts `bytes` that whoever fills the tree takes on its behalf; TreeError beyond the limit.
  void charge(std::size_t bytes);

  [[nodiscard]] std::span<const Word> items(Word container) const {
    const Container& c = containers_[container.payload()];
    return {c.items, c.size};
  }
  [[nodiscard]] double real_of(Word word) const { return reals_[word.payload()]; }
  [[nodiscard]] const std::string& big_of(Word word) const { return bigs_[word.payload()]; }
  [[nodiscard]] std::string_view text_of(Word word) const { return texts_[static_cast<TextId>(word.payload())]; }
  [[nodiscard]] std::size_t containers() const { return containers_.size(); }
  [[nodiscard]] std::size_t words() const { return words_; }  ///< in all containers

  [[nodiscard]] Texts& texts() { return texts_; }
  [[nodiscard]] const Texts& texts() const { return texts_; }
  Texts take_texts() { return std::move(texts_); }

 private:
  struct Container {
    Word* items = nullptr;
    std::uint32_t size = 0;
    std::uint32_t capacity = 0;
  };
  [[nodiscard]] Word* words_for(std::size_t count);

  std::size_t limit_;
  std::size_t bytes_ = 0;
  std::size_t words_ = 0;
  Texts texts_;
  std::vector<double> reals_;
  std::vector<std::string> bigs_;
  std::vector<Container> containers_;
  std::vector<std::unique_ptr<Word[]>> chunks_;
  std::size_t used_ = 0;      ///< words of the last chunk
  std::size_t capacity_ = 0;  ///< of the last chunk
};

/// The root of the tree that a pickle is. Throws TreeError.
[[nodiscard]] Word read_pickle(std::string_view bytes, DataTree& tree);
/// The same of a JSON text: arrays are lists.
[[nodiscard]] Word read_json(std::string_view text, std::size_t nesting, DataTree& tree);

}  // namespace warpmeter::reports::snapshot::detail
