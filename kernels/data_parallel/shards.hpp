#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace warpmeter::data_parallel {

/// How parameters are dealt out to the ranks that update them.
enum class ShardRule : std::uint8_t {
  bytes,   ///< each rank a run of neighbours, the largest share as small as can be: few and large arrays to send on
  modulo,  ///< parameter i belongs to rank i mod world_size
};
/// "bytes", "modulo".
[[nodiscard]] std::string_view name(ShardRule rule) noexcept;

/// Which rank updates which parameter (ZeRO stage 1). A rank may own none.
/// Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020.
class ShardMap {
 public:
  /// `bytes` of each parameter; 0: it is not trained and nobody owns it.
  ShardMap(ShardRule rule, int world_size, std::span<const std::int64_t> bytes);

  /// A parameter that comes later: by modulo as its number says, by bytes to the rank that owns least. Its number.
  std::size_t add(std::int64_t bytes);

  [[nodiscard]] ShardRule rule() const { return rule_; }
  [[nodiscard]] int world_size() const { return static_cast<int>(owned_bytes_.size()); }
  [[nodiscard]] std::size_t size() const { return owners_.size(); }
  /// -1: nobody.
  [[nodiscard]] int owner(std::size_t parameter) const { return owners_.at(parameter); }
  [[nodiscard]] std::int64_t bytes_of(int rank) const { return owned_bytes_.at(static_cast<std::size_t>(rank)); }
  [[nodiscard]] std::vector<bool> owned_by(int rank) const;

 private:
  void give(int rank, std::int64_t bytes);

  ShardRule rule_;
  std::vector<int> owners_;
  std::vector<std::int64_t> owned_bytes_;  ///< by rank
};

}  // namespace warpmeter::data_parallel
