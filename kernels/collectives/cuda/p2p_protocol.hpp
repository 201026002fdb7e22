#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/collectives/communicator.hpp"
#include "kernels/collectives/cuda/p2p_memory.hpp"

/// What the peer-to-peer kernels and the host agree on: the arena that every rank keeps for its peers, and a call.
namespace warpmeter::collectives::p2p {

constexpr int kMaxRanks = 8;
constexpr int kMaxBlocks = 128;
constexpr int kMaxThreads = 512;

/// A packet carries 8 bytes of data in 16: a flag beside each half, so that a half is there when its flag is.
constexpr int kPacketBytes = 8;
/// Packets that a block sends to each peer in one call of the small protocol.
constexpr int kBlockPackets = 1024;

/// How a rank's arena, which its peers write to, is laid out. The same on all ranks. Offsets in bytes.
struct ArenaLayout {
  std::int64_t packets = 0;        ///< [parity 2][source][block][kBlockPackets] of 16 bytes
  std::int64_t descriptors = 0;    ///< [source][block] of 32 bytes
  std::int64_t end_flags = 0;      ///< [source][block] of 4 bytes: the source's block has done with this rank's memory
  std::int64_t stage_a_flags = 0;  ///< [source][block] of 4 bytes: chunks put into stage A
  std::int64_t stage_b_flags = 0;
  std::int64_t stage_a = 0;  ///< [parity 2][source][block][stage_bytes]: a part of the source's input, to reduce here
  std::int64_t stage_b = 0;  ///< the same: a part of the result, reduced by the source
  std::int64_t state = 0;    ///< [block] of BlockState, this rank's own
  std::int64_t broken = 0;   ///< 4 bytes, this rank's own: 0, or why the kernels have given up
  std::int64_t bytes = 0;
  int world_size = 0;
  int stage_bytes = 0;

  static ArenaLayout of(int world_size, int stage_bytes) {
    ArenaLayout layout;
    layout.world_size = world_size;
    layout.stage_bytes = stage_bytes;
    const auto take = [&layout](std::int64_t bytes) {
      const std::int64_t at = layout.bytes;
      layout.bytes += (bytes + 4095) / 4096 * 4096;
      return at;
    };
    const std::int64_t channels = std::int64_t{world_size} * kMaxBlocks;
    layout.packets = take(2 * channels * kBlockPackets * 16);
    layout.descriptors = take(channels * 32);
    layout.end_flags = take(channels * 4);
    layout.stage_a_flags = take(channels * 4);
    layout.stage_b_flags = take(channels * 4);
    layout.stage_a = take(2 * channels * stage_bytes);
    layout.stage_b = take(2 * channels * stage_bytes);
    layout.state = take(std::int64_t{kMaxBlocks} * 16);
    layout.broken = take(4);
    return layout;
  }
};

/// What a block counts, in the memory of the GPU, so that a CUDA graph replays it: calls that it took part in. Per
/// block because a smaller call has fewer of them; every rank runs the same blocks in the same calls.
struct alignas(16) BlockState {
  std::uint32_t small_calls;
  std::uint32_t bulk_calls;
  std::uint32_t chunks;  ///< through the stages
  std::uint32_t unused;
};

/// Why kernels gave up, in the low byte of `broken` and P2pStatus::code; the rank that was waited for above it.
enum class P2pFault : std::uint32_t { none = 0, aborted = 1, timeout = 2, mismatch = 3 };
constexpr WM_P2P_FN std::uint32_t fault_code(P2pFault fault, int peer) {
  return static_cast<std::uint32_t>(fault) | static_cast<std::uint32_t>(peer) << 8;
}

/// Host memory that kernels see: the way to stop them, and their last words.
struct P2pStatus {
  std::uint32_t abort;  ///< written by the host: waiting kernels give up
  std::uint32_t code;   ///< written by the first kernel that gave up
};

/// One collective of one rank: a kernel's argument.
struct P2pCall {
  CollectiveKind kind;
  ReduceOp op;
  int rank, world_size, root;
  std::uint64_t signature;  ///< 48 bits of what is called, equal on all ranks or a mismatch: signature_of()
  /// Of one rank's part: the array itself; for reduce_scatter the output, for all_gather the input.
  std::int64_t bytes;
  char* input;
  char* output;
  /// Where the rank's arrays are in the peers' address spaces, 0: not shared with them. Of pieces, output_at[r] is
  /// where rank r sees the place of its own piece here, input_at[r] where this rank itself does.
  std::uint64_t input_at[kMaxRanks];
  std::uint64_t output_at[kMaxRanks];
  char* arenas[kMaxRanks];  ///< by rank, where this rank sees them
  ArenaLayout layout;
  P2pStatus* status;
  std::uint64_t timeout_ns;
  bool may_pull;  ///< bulk: pulls()
  bool pieces;    ///< bulk all_gather of pieces, each of its own length and address, not all empty (nothing would keep
                  ///< a rank from being a call ahead): `bytes` is the own one's
  std::int64_t block_packets;  ///< small: a block's packets, of which the last block may have fewer
  std::uint32_t clear_mask;    ///< small: how often stale packets are cleared, less 1 (kClearMask)
};

/// 10 bits name the kind, operation, type and root; the others are mixed from the size.
inline std::uint64_t signature_of(const Collective& c, std::int64_t bytes) {
  const bool reduces = c.kind == CollectiveKind::all_reduce || c.kind == CollectiveKind::reduce_scatter;
  const std::uint64_t type =
      size_of(c.input.dtype) == 4 ? (c.input.dtype == DType::int32 ? 1 : 0) : (c.input.dtype == DType::bf16 ? 2 : 3);
  const std::uint64_t id = static_cast<std::uint64_t>(c.kind) | (reduces ? static_cast<std::uint64_t>(c.op) : 0) << 3 |
                           type << 5 | static_cast<std::uint64_t>(c.root) << 7;
  std::uint64_t mixed = static_cast<std::uint64_t>(bytes) * 0x9E3779B97F4A7C15ULL;
  mixed ^= mixed >> 29;
  return (id | mixed << 10) & ((std::uint64_t{1} << 48) - 1);
}

/// Of all_gather_v: of the lengths of all pieces, which every rank must give alike.
inline std::uint64_t signature_of_pieces(std::span<const CollectiveBuffer> pieces) {
  // A reduction's operation would stand where the 1 does: no other call's signature.
  const std::uint64_t id = static_cast<std::uint64_t>(CollectiveKind::all_gather) | 1U << 3;
  std::uint64_t mixed = 0;
  for (const CollectiveBuffer& piece : pieces) {
    mixed = (mixed ^ static_cast<std::uint64_t>(piece.bytes())) * 0x9E3779B97F4A7C15ULL;
    mixed ^= mixed >> 29;
  }
  return (id | mixed << 10) & ((std::uint64_t{1} << 48) - 1);
}

/// Stale packets may lie in a block's slots from a call long ago, and a flag has room for 2^20 calls: so many calls
/// apart each slot is cleared.
constexpr std::uint32_t kClearMask = (1U << 18) - 1;

/// The flag of a call's packets: its number, and what was called in 12 bits that are never 0.
constexpr WM_P2P_FN std::uint32_t packet_flag(std::uint32_t call_number, std::uint64_t signature) {
  const auto folded = static_cast<std::uint32_t>(signature ^ (signature >> 12) ^ (signature >> 24) ^ (signature >> 36));
  return (call_number << 12) | ((folded & 0xFFFU) % 0xFFFU + 1U);
}

}  // namespace warpmeter::collectives::p2p
