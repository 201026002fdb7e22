#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/allreduce_bench/configuration.hpp"

namespace warpmeter::allreduce_bench {

/// Inputs whose reductions are exact in every type, in whatever order they are done: small whole numbers, each at
/// random from (seed, rank, place), so that an element that is left out, taken twice or put elsewhere shows. Every rank
/// knows every rank's numbers, so the expected result needs no communication.
///
/// The numbers are a table of kPeriod, walked through again and again from a random place of it: filling and comparing
/// arrays of GiB goes at the speed of memory. kPeriod is prime, so no block of a collective falls in step with it.
class Pattern {
 public:
  static constexpr std::int64_t kPeriod = 65'521;

  Pattern(const Configuration& configuration, std::uint64_t seed);

  /// Elements [begin, begin + count) of rank `rank`'s input, to host memory.
  void write_input(int rank, std::int64_t begin, std::int64_t count, char* data) const;

  struct Difference {
    std::int64_t wrong = 0;  ///< elements
    std::string first;       ///< "element 17: got 3, expected 4"; empty when none
  };
  /// Compares elements [begin, begin + count) of rank `rank`'s output, in host memory, with what they must be. avg of
  /// floats may differ by roundings of a quotient; all else must be equal.
  [[nodiscard]] Difference compare_output(int rank, std::int64_t begin, std::int64_t count, const char* data) const;

 private:
  using Table = std::vector<char>;
  [[nodiscard]] std::int64_t place_of(std::int64_t element) const;
  [[nodiscard]] Table encode(const std::vector<std::int64_t>& values) const;
  /// Calls piece(offset in the array, offset in the table, elements) for runs that are contiguous in both.
  template <class Piece>
  void walk(std::int64_t begin, std::int64_t count, const Piece& piece) const;

  Configuration configuration_;
  std::uint64_t seed_;
  std::vector<Table> inputs_;  ///< a rank's each
  Table result_;               ///< of a reduction
};

}  // namespace warpmeter::allreduce_bench
