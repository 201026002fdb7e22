#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/collectives/communicator.hpp"

namespace warpmeter::collectives {

/// The sizes at which `auto` changes over between p2p and nccl, for each kind of collective. As text:
///
///     all_reduce p2p 33554432 nccl
///     all_gather nccl
///
/// p2p up to and with 33554432 bytes, nccl above. Bytes are the array that a rank ends with (reduce_scatter: begins
/// with). A kind without a line goes by p2p. '#' begins a comment.
class AutoTable {
 public:
  enum class Choice : std::uint8_t { p2p, nccl };
  struct Span {
    std::int64_t up_to = std::numeric_limits<std::int64_t>::max();  ///< with
    Choice choice = Choice::p2p;
  };

  /// Throws std::invalid_argument with the line.
  [[nodiscard]] static AutoTable parse(std::string_view text);
  [[nodiscard]] static AutoTable always(Choice choice);
  [[nodiscard]] std::string text() const;

  [[nodiscard]] Choice choice(CollectiveKind kind, std::int64_t bytes) const;
  /// Ascending sizes, each with whether nccl was the faster: between two of them that differ, the geometric mean.
  void set(CollectiveKind kind, const std::vector<Span>& measured);

 private:
  static constexpr int kKinds = 5;
  std::array<std::vector<Span>, kKinds> spans_;  ///< the last one of each has no end
};

[[nodiscard]] std::string_view name(AutoTable::Choice choice) noexcept;

}  // namespace warpmeter::collectives
