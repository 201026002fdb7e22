#pragma once

#include <cstdint>

#include "kernels/collectives/communicator.hpp"

namespace warpmeter::collectives::detail {

/// destinations[d][i] = op over s of sources[s][i], s ascending, for i in [0, count) and every d. Accumulators as
/// ReduceOp says. Any addresses; a destination is a source itself or overlaps none.
struct Reduction {
  const char* const* sources = nullptr;
  int source_count = 0;  ///< at least 1
  char* const* destinations = nullptr;
  int destination_count = 0;
  std::int64_t count = 0;  ///< elements
  DType dtype = DType::fp32;
  ReduceOp op = ReduceOp::sum;
  /// So many of the first destinations are written past the cache, where their addresses allow: memory that nobody
  /// reads soon, of which a line written so is not read first.
  int streamed = 0;
  int divisor = 0;  ///< of avg; 0: source_count
};

/// In the calling thread, with the widest instructions that the machine has. Every variant gives the same bits, save
/// for the payload of a NaN.
void reduce(const Reduction& reduction);

/// Copies between memory that does not overlap, in the calling thread; past the cache on the writing side.
void copy_streaming(char* destination, const char* source, std::int64_t bytes);

}  // namespace warpmeter::collectives::detail
