#pragma once

#include <type_traits>

#include "kernels/collectives/cuda/p2p_block.hpp"
#include "kernels/collectives/cuda/p2p_element.hpp"

/// The small protocol: every rank sends its part to every other one at once, in packets whose halves carry a flag, and
/// combines what arrives. One way over the link, no barrier, no fence: data and flag are one 64-bit word.
///
/// Packets have two sides, used in turn. A block that sends call i to a side knows that every peer has read what call
/// i - 2 left there: it has had a packet of each for call i - 1, sent by a kernel that began after that of i - 2 had
/// ended. Therefore every block gets at least one packet from every peer in every call, needed or not.
///
/// Any address; in place: a thread writes only where it alone has read.
namespace warpmeter::collectives::p2p {

WM_P2P_FN int bytes_of_packet(std::int64_t bytes, std::int64_t packet) {
  const std::int64_t left = bytes - packet * kPacketBytes;
  return left >= kPacketBytes ? kPacketBytes : left > 0 ? static_cast<int>(left) : 0;
}

/// kWhole: it is, and lies on eight bytes; `valid` is not looked at.
template <bool kWhole = false>
WM_P2P_FN void load_packet(std::uint32_t (&words)[2], const char* array, std::int64_t packet, int valid) {
  const char* p = array + packet * kPacketBytes;
  if (kWhole || (valid == kPacketBytes && is_aligned(p, 8))) {
    const std::uint64_t both = load_unit<std::uint64_t>(p);
    words[0] = static_cast<std::uint32_t>(both);
    words[1] = static_cast<std::uint32_t>(both >> 32);
  } else {
    load_any(words, p, valid);
  }
}

template <bool kWhole = false>
WM_P2P_FN void store_packet(char* array, std::int64_t packet, const std::uint32_t (&words)[2], int valid) {
  char* p = array + packet * kPacketBytes;
  if (kWhole || (valid == kPacketBytes && is_aligned(p, 8))) {
    store_unit<std::uint64_t>(p, words[0] | static_cast<std::uint64_t>(words[1]) << 32);
  } else {
    store_any(p, words, valid);
  }
}

WM_P2P_FN void send_packet(char* slot, const std::uint32_t (&words)[2], std::uint32_t flag) {
  const std::uint64_t high = static_cast<std::uint64_t>(flag) << 32;
  store_pair_relaxed(slot, {high | words[0], high | words[1]});
}

template <class Cta>
WM_P2P_FN void receive_packet(Block<Cta>& block, const char* slot, int source, std::uint32_t flag,
                              std::uint32_t (&words)[2]) {
  Pair64 pair = {0, 0};
  block.wait(
      source,
      [&] {
        pair = load_pair_relaxed(slot);
        return (pair.a >> 32) == flag && (pair.b >> 32) == flag;
      },
      [&] {  // this call, but not what we are in
        const auto theirs = static_cast<std::uint32_t>(pair.a >> 32);
        return theirs != flag && (theirs >> 12) == (flag >> 12);
      });
  words[0] = static_cast<std::uint32_t>(pair.a);
  words[1] = static_cast<std::uint32_t>(pair.b);
}

/// This block's slots of the side that the next call uses. Nobody writes there yet: peers do once they have this call's
/// packets, which are sent after the fence.
template <class Cta>
WM_P2P_FN void clear_next_side(Block<Cta>& block, unsigned side) {
  const int n = block.call.world_size;
  for (int source = 0; source < n; ++source) {
    char* slots = block.packets(block.call.rank, side, source);
    for (int i = block.cta.thread(); i < kBlockPackets; i += block.cta.threads()) {
      store_pair_relaxed(slots + std::int64_t{i} * 16, {0, 0});
    }
  }
  block.cta.sync();
  fence_system();
}

/// An all_reduce of whole packets on eight bytes, at most one a thread: the usual small call. What ranks say to each
/// other is the same, so one may be in it and another not.
WM_P2P_FN bool is_plain(const P2pCall& call, int threads) {
  return call.kind == CollectiveKind::all_reduce && call.bytes > 0 && call.bytes % kPacketBytes == 0 &&
         call.block_packets <= threads && is_aligned(call.input, kPacketBytes) && is_aligned(call.output, kPacketBytes);
}

/// kWorld: the number of ranks where known when compiled, else 0. kPlain: is_plain(), with half the instructions ahead
/// of the first packet.
template <class T, int kWorld, bool kPlain, class Cta>
WM_P2P_FN void run_small(const P2pCall& call, Cta& cta) {
  using Index = std::conditional_t<kPlain, int, std::int64_t>;
  Block<Cta> block{call, cta};
  const int n = kWorld > 0 ? kWorld : call.world_size;
  const int rank = call.rank;
  const CollectiveKind kind = kPlain ? CollectiveKind::all_reduce : call.kind;
  const auto total = static_cast<Index>(call.bytes > 0 ? (call.bytes + kPacketBytes - 1) / kPacketBytes : 1);
  const auto block_packets = static_cast<Index>(call.block_packets);
  const Index begin = cta.block() * block_packets;
  const Index end = begin + block_packets < total ? begin + block_packets : total;
  const Index first = begin + cta.thread();
  // One word for all that have nothing to say: that they are here.
  const bool silent = kind == CollectiveKind::barrier || (kind == CollectiveKind::broadcast && rank != call.root);
  const bool scatters = kind == CollectiveKind::reduce_scatter;
  // The thread's first packet is on its way while the count is: mostly it is the only one. In this order: nothing of
  // the count is waited for before the packet is asked for.
  std::uint32_t first_words[2] = {0, 0};
  if (!silent && !scatters && first < end) {
    load_packet<kPlain>(first_words, call.input, first, bytes_of_packet(call.bytes, first));
  }
  const std::uint32_t before = load_relaxed(&block.state()->small_calls);

  const std::uint32_t number = before + 1;
  const unsigned side = number & 1U;
  const std::uint32_t flag = packet_flag(number, call.signature);
  const bool clears = (number & call.clear_mask) < 2;  // one side, and the other in the call after
  if (clears) clear_next_side(block, side ^ 1U);

  for (Index i = first; i < end; i += static_cast<Index>(cta.threads())) {
    if (silent && i != begin) continue;
    const int valid = bytes_of_packet(call.bytes, i);
    std::uint32_t words[2] = {first_words[0], first_words[1]};
    if (!silent && !scatters && i != first) load_packet(words, call.input, i, valid);
    WM_P2P_UNROLL
    for (int step = 1; step < n; ++step) {
      const int peer = rank + step < n ? rank + step : rank + step - n;
      if (scatters) load_packet(words, call.input + peer * call.bytes, i, valid);
      send_packet(block.packets(peer, side, rank) + (i - begin) * 16, words, flag);
    }
    if (kPlain) break;
  }

  for (Index i = first; i < end; i += static_cast<Index>(cta.threads())) {
    const int valid = bytes_of_packet(call.bytes, i);
    std::uint32_t own[2] = {first_words[0], first_words[1]};
    const char* own_part = scatters ? call.input + rank * call.bytes : call.input;
    if (!silent && !kPlain && (scatters || i != first)) load_packet(own, own_part, i, valid);
    Accumulators<T, 2> total_of;
    WM_P2P_UNROLL
    for (int source = 0; source < n; ++source) {
      std::uint32_t words[2] = {own[0], own[1]};
      if (source != rank) {
        const bool token =
            kind == CollectiveKind::barrier || (kind == CollectiveKind::broadcast && source != call.root);
        if (token && i != begin) continue;
        receive_packet(block, block.packets(rank, side, source) + (i - begin) * 16, source, flag, words);
      }
      if constexpr (T::kBytes == 1) {
        if (kind == CollectiveKind::all_gather) store_packet(call.output + source * call.bytes, i, words, valid);
        if (kind == CollectiveKind::broadcast && source == call.root) store_packet(call.output, i, words, valid);
      } else if (source == 0) {
        total_of.begin(words);
      } else {
        total_of.add(call.op, words);
      }
    }
    if constexpr (T::kBytes > 1) {
      std::uint32_t words[2];
      total_of.finish(call.op, n, words);
      store_packet<kPlain>(call.output, i, words, valid);
    }
    if (kPlain) break;
  }

  if (clears) fence_system();
  cta.sync();  // all have read the number
  if (cta.thread() == 0) block.state()->small_calls = number;
}

}  // namespace warpmeter::collectives::p2p
