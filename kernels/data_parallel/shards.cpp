#include "kernels/data_parallel/shards.hpp"

#include <algorithm>

#include "kernels/runtime/check.hpp"

namespace warpmeter::data_parallel {

namespace {

/// How many runs of at most `most` bytes the parameters make.
std::int64_t runs_within(std::span<const std::int64_t> bytes, std::int64_t most) {
  std::int64_t runs = 1, open = 0;
  for (const std::int64_t b : bytes) {
    if (open + b > most) {
      ++runs;
      open = 0;
    }
    open += b;
  }
  return runs;
}

}  // namespace

std::string_view name(ShardRule rule) noexcept {
  return rule == ShardRule::bytes ? "bytes" : "modulo";
}

ShardMap::ShardMap(ShardRule rule, int world_size, std::span<const std::int64_t> bytes)
    : rule_(rule), owned_bytes_(static_cast<std::size_t>(world_size), 0) {
  WM_CHECK(world_size >= 1, "there is a rank");
  if (rule == ShardRule::modulo) {
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      give(static_cast<int>(i % static_cast<std::size_t>(world_size)), bytes[i]);
    }
    return;
  }
  // The least bound that the ranks are enough for.
  std::int64_t low = 0, high = 0;
  for (const std::int64_t b : bytes) {
    low = std::max(low, b);
    high += b;
  }
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (runs_within(bytes, middle) <= world_size) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  int rank = 0;
  for (const std::int64_t b : bytes) {
    if (owned_bytes_[static_cast<std::size_t>(rank)] + b > low) ++rank;
    give(rank, b);
  }
}

void ShardMap::give(int rank, std::int64_t bytes) {
  owners_.push_back(bytes > 0 ? rank : -1);
  owned_bytes_[static_cast<std::size_t>(rank)] += bytes;
}

std::size_t ShardMap::add(std::int64_t bytes) {
  const auto least = std::min_element(owned_bytes_.begin(), owned_bytes_.end());
  give(rule_ == ShardRule::modulo ? static_cast<int>(owners_.size() % owned_bytes_.size())
                                  : static_cast<int>(least - owned_bytes_.begin()),
       bytes);
  return owners_.size() - 1;
}

std::vector<bool> ShardMap::owned_by(int rank) const {
  std::vector<bool> owned;
  for (const int owner : owners_) owned.push_back(owner == rank);
  return owned;
}

}  // namespace warpmeter::data_parallel
