#pragma once

#include <cstdint>
#include <memory>

#include "kernels/collectives/backend.hpp"
#include "kernels/collectives/communicator.hpp"

namespace warpmeter::collectives {

namespace detail {
class StreamOrder;
}

struct P2pOptions {
  /// Longest that a kernel waits for another rank's. It gives up then, so that no GPU spins for ever.
  double timeout_s = 30;
  /// Most blocks, so most multiprocessors, that a collective takes: what overlaps with it has the others. At most 128.
  int max_blocks = 128;
  /// Blocks of the bulk protocol, which the link keeps busy with fewer. 0: chosen.
  int bulk_blocks = 0;
  /// Parts of so many bytes and fewer go by the small protocol. Negative: by the number of ranks.
  std::int64_t small_max_bytes = -1;
  /// Two ranks: an all_reduce out of place reads the peer's whole input, where in place each rank reduces one half.
  bool pull = true;
  /// Several ranks on one GPU: they take turns of milliseconds. For tests.
  bool share_gpus = false;
  /// Shared with another communicator whose calls are to be in one order with these. Null: its own.
  std::shared_ptr<detail::StreamOrder> order;
};

/// The `p2p` backend: up to 8 ranks of one host, each with a GPU that reaches the others' memory (CUDA IPC), no NVLink
/// multicast. Kernels of two protocols, picked by the size of a rank's part (cuda/p2p_small.hpp, cuda/p2p_bulk.hpp).
/// One-shot: every rank sends its part to all, data and flags in one word. Two-shot: a rank reduces the part of the
/// elements that it owns out of all ranks' memory, and writes it into all of theirs.
///
/// The bulk protocol reaches arrays from allocate() directly, at any offset; others go through staging memory, at some
/// four fifths of the speed. Ranks may differ in that. All ranks get the same bits, those of ReduceOp.
///
/// allocate() is a collective call: every rank makes it, in the same order. Communicator calls may be captured into
/// CUDA graphs: launches count in the GPU's memory. A Work of a captured call is done at once; failures of replays
/// are thrown by the next call. Kernels of different streams are ordered as they are called, except in a capture.
///
/// Throws CollectiveError (unsupported) where the GPUs do not reach each other, DeviceError, OutOfMemory.
[[nodiscard]] std::unique_ptr<Communicator> make_p2p(const RankContext& context, const P2pOptions& options);

/// The entry of the table of backends.
[[nodiscard]] const Backend& p2p_backend();

}  // namespace warpmeter::collectives
