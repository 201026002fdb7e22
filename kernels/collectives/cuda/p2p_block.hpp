#pragma once

#include "kernels/collectives/cuda/p2p_memory.hpp"
#include "kernels/collectives/cuda/p2p_protocol.hpp"

/// A thread block of the peer-to-peer kernels: its addresses in the arenas, its waiting. `Cta` says who and where the
/// thread is and joins the block: thread(), threads(), block(), blocks(), sync(), all() (a sync() that tells every
/// thread whether all said true), now_ns(), polls_host(), pause().
namespace warpmeter::collectives::p2p {

template <class Cta>
struct Block {
  const P2pCall& call;
  Cta& cta;
  bool gave_up = false;  ///< of this thread: no more waiting, what it computes is worth nothing
  std::uint64_t deadline_ns = 0;

  [[nodiscard]] WM_P2P_FN char* mine() const { return call.arenas[call.rank]; }
  [[nodiscard]] WM_P2P_FN std::int64_t channel(int source) const {
    return std::int64_t{source} * kMaxBlocks + cta.block();
  }
  [[nodiscard]] WM_P2P_FN BlockState* state() const {
    return reinterpret_cast<BlockState*>(mine() + call.layout.state) + cta.block();
  }
  [[nodiscard]] WM_P2P_FN std::uint32_t* broken() const {
    return reinterpret_cast<std::uint32_t*>(mine() + call.layout.broken);
  }
  /// This block's flag of the array at `array`, in `owner`'s arena, that `source` sets.
  [[nodiscard]] WM_P2P_FN std::uint32_t* flag(std::int64_t array, int owner, int source) const {
    return reinterpret_cast<std::uint32_t*>(call.arenas[owner] + array) + channel(source);
  }
  [[nodiscard]] WM_P2P_FN char* packets(int owner, unsigned parity, int source) const {
    const std::int64_t slot = std::int64_t{parity} * call.world_size * kMaxBlocks + channel(source);
    return call.arenas[owner] + call.layout.packets + slot * (kBlockPackets * 16);
  }
  [[nodiscard]] WM_P2P_FN char* stage(std::int64_t stages, int owner, unsigned parity, int source) const {
    const std::int64_t slot = std::int64_t{parity} * call.world_size * kMaxBlocks + channel(source);
    return call.arenas[owner] + stages + slot * call.layout.stage_bytes;
  }
  [[nodiscard]] WM_P2P_FN char* descriptor(int owner, int source) const {
    return call.arenas[owner] + call.layout.descriptors + channel(source) * 32;
  }

  /// The first to give up on this GPU leaves word for the host.
  WM_P2P_FN void give_up(P2pFault fault, int peer) {
    gave_up = true;
    const std::uint32_t code = fault_code(fault, peer);
    if (set_if_zero(broken(), code)) store_relaxed(&call.status->code, code);
  }

  /// Now and then while waiting. `looks`: how often this thread has looked here in this wait.
  WM_P2P_FN bool should_give_up(int peer, unsigned looks) {
    if (load_relaxed(broken()) != 0) {
      gave_up = true;  // another thread of this GPU has
      return true;
    }
    const std::uint64_t now = cta.now_ns();
    if (deadline_ns == 0) deadline_ns = now + call.timeout_ns;
    if (now >= deadline_ns) {
      give_up(P2pFault::timeout, peer);
      return true;
    }
    // Across PCIe: by one thread of those that wait together, and rarely.
    if (looks % kLooksPerHostLook == 0 && cta.polls_host() && load_relaxed(&call.status->abort) != 0) {
      give_up(P2pFault::aborted, peer);
      return true;
    }
    return false;
  }

  /// Waits until ready(), which acquires. False: given up. mismatch(): looked at when it takes long.
  template <class Ready, class Mismatch>
  WM_P2P_FN bool wait(int peer, const Ready& ready, const Mismatch& mismatch) {
    if (gave_up) return false;
    for (unsigned looks = 1;; ++looks) {
      for (int spin = 0; spin < kSpinsPerLook; ++spin) {
        if (ready()) return true;
        cta.pause();
      }
      if (mismatch()) {
        give_up(P2pFault::mismatch, peer);
        return false;
      }
      if (should_give_up(peer, looks)) {
        // The peer may have done its part and left in between.
        if (ready()) {
          gave_up = false;
          return true;
        }
        return false;
      }
    }
  }
  template <class Ready>
  WM_P2P_FN bool wait(int peer, const Ready& ready) {
    return wait(peer, ready, [] { return false; });
  }

  /// Every other rank's block of this number has come as far as `value` in the flags at `array`: called by all threads,
  /// after it they see what the peers had written. Of this block everything written before is published first.
  /// False: given up, to all threads alike.
  WM_P2P_FN bool meet(std::int64_t array, std::uint32_t value) {
    cta.sync();  // all threads' writes, and their reads of memory that the peers take back now
    const int peer = cta.thread();
    bool came = !gave_up;
    if (peer < call.world_size && peer != call.rank) {
      store_release(flag(array, peer, call.rank), value);
      const std::uint32_t* theirs = flag(array, call.rank, peer);
      came = wait(peer, [&] { return static_cast<std::int32_t>(load_acquire(theirs) - value) >= 0; });
    }
    return cta.all(came);
  }

  static constexpr int kSpinsPerLook = 1024;         ///< some 500 us on a GPU
  static constexpr unsigned kLooksPerHostLook = 32;  ///< a death ends the waiting within some 20 ms
};

}  // namespace warpmeter::collectives::p2p
