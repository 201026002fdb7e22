#include "reports/snapshot/detail/data_tree.hpp"

#include <algorithm>
#include <limits>

#include "reports/snapshot/data.hpp"

namespace warpmeter::reports::snapshot::detail {

void DataTree::charge(std::size_t bytes) {
  bytes_ += bytes;
  if (bytes_ > limit_ || texts_.bytes() > limit_ - bytes_) {
    throw TreeError("its values take more than " + std::to_string(limit_ >> 20) + " MiB of memory");
  }
}

Word* DataTree::words_for(std::size_t count) {
  constexpr std::size_t kChunk = std::size_t{1} << 16;
  if (capacity_ - used_ < count || chunks_.empty()) {
    const std::size_t size = std::max(kChunk, count);
    charge(size * sizeof(Word));
    chunks_.push_back(std::make_unique<Word[]>(size));
    capacity_ = size;
    used_ = 0;
  }
  Word* const at = chunks_.back().get() + used_;
  used_ += count;
  return at;
}

Word DataTree::integer(std::int64_t value) {
  constexpr std::int64_t kLargest = (std::int64_t{1} << 60) - 1;
  if (value >= -kLargest && value <= kLargest) return {Word::Kind::integer, static_cast<std::uint64_t>(value)};
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * i) & 0xFF);
  charge(sizeof(std::string));
  bigs_.push_back(std::move(bytes));
  return {Word::Kind::big, bigs_.size() - 1};
}

Word DataTree::big(std::string_view twos_complement) {
  const Data value = integer_from_bytes(twos_complement);
  if (const std::int64_t* small = value.as_integer()) return integer(*small);
  charge(sizeof(std::string) + twos_complement.size());
  bigs_.push_back(std::get<BigInteger>(value.value).bytes);
  return {Word::Kind::big, bigs_.size() - 1};
}

Word DataTree::real(double value) {
  charge(sizeof(double));
  reals_.push_back(value);
  return {Word::Kind::real, reals_.size() - 1};
}

Word DataTree::text(std::string_view text) {
  const TextId id = texts_.intern(text);
  charge(0);
  return {Word::Kind::text, id};
}

Word DataTree::container(Word::Kind kind, std::span<const Word> items) {
  charge(sizeof(Container));
  const Word word(kind, containers_.size());
  containers_.emplace_back();
  if (!items.empty()) append(word, items);
  return word;
}

void DataTree::append(Word container, std::span<const Word> items) {
  Container& c = containers_[container.payload()];
  const std::size_t size = c.size + items.size();
  if (size > std::numeric_limits<std::uint32_t>::max()) throw TreeError("a container of more than 4 billion values");
  if (size > c.capacity) {
    // The first items come all at once mostly; what grows afterwards grows on.
    const std::size_t room = std::min<std::size_t>(std::max<std::size_t>(size, std::size_t{c.capacity} * 2),
                                                   std::numeric_limits<std::uint32_t>::max());
    Word* const moved = words_for(room);
    std::copy(c.items, c.items + c.size, moved);
    c.items = moved;
    c.capacity = static_cast<std::uint32_t>(room);
  }
  std::copy(items.begin(), items.end(), c.items + c.size);
  c.size = static_cast<std::uint32_t>(size);
  words_ += items.size();
}

}  // namespace warpmeter::reports::snapshot::detail
