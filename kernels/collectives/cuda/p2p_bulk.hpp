#pragma once

#include "kernels/collectives/cuda/p2p_block.hpp"
#include "kernels/collectives/cuda/p2p_element.hpp"

/// The bulk protocol. The blocks of one number on all ranks first tell each other where their arrays are (and that
/// everything before this call on their streams is done); then, all ranks alike,
///
/// - direct, where all arrays that others must reach are shared: a rank owns a part of the elements, reads that part of
///   every rank's input and writes the result into every rank's output. Reduce-scatter and all-gather in one pass, and
///   in place right: nobody else touches these elements. Then they meet once more, so that no rank's next kernel comes
///   before its peers have done with its memory.
/// - staged, where not: in chunks through the arenas, everything pushed to its reader. Two sides of each stage, used in
///   turn; a rank writes a side's chunk c once it has every peer's flag of chunk c - 1, sent after they had done with
///   chunk c - 2.
namespace warpmeter::collectives::p2p {

/// What the other ranks have said of their arrays. In the block's shared memory.
struct Peers {
  char* input[kMaxRanks];
  char* output[kMaxRanks];
  bool input_shared[kMaxRanks];
  bool output_shared[kMaxRanks];
  std::int64_t bytes[kMaxRanks];  ///< of their parts
};

/// 48 bits of value under 16 of the call's number. Another call's word never passes for this one's: a slot is rewritten
/// in every call.
WM_P2P_FN std::uint64_t tagged(std::uint64_t value, std::uint32_t number) {
  return value << 16 | (number & 0xFFFFU);
}

/// False: given up, to all threads alike.
template <class Cta>
WM_P2P_FN bool exchange(Block<Cta>& block, std::uint32_t number, Peers& peers) {
  const P2pCall& call = block.call;
  const int peer = block.cta.thread();
  bool came = true;
  if (peer == call.rank) {
    peers.input[peer] = call.input;
    peers.output[peer] = call.output;
    // What the others were told: they decide by it.
    bool input = true, output = true;
    for (int r = 0; r < call.world_size; ++r) {
      if (r == call.rank) continue;
      input = input && call.input_at[r] != 0;
      output = output && call.output_at[r] != 0;
    }
    peers.input_shared[peer] = input;
    peers.output_shared[peer] = output;
    peers.bytes[peer] = call.bytes;
  } else if (peer < call.world_size) {
    const auto bytes = static_cast<std::uint64_t>(call.bytes);
    store_pairs_release(block.descriptor(peer, call.rank),
                        {tagged(call.input_at[peer], number), tagged(call.output_at[peer], number)},
                        {tagged(call.signature, number), tagged(bytes, number)});
    const char* theirs = block.descriptor(call.rank, peer);
    const std::uint64_t tag = number & 0xFFFFU;
    Pair64 where = {0, 0}, what = {0, 0};
    came = block.wait(peer, [&] {
      where = load_pair_to_acquire(theirs);
      what = load_pair_to_acquire(theirs + 16);
      return ((where.a & 0xFFFFU) == tag) && ((where.b & 0xFFFFU) == tag) && ((what.a & 0xFFFFU) == tag) &&
             ((what.b & 0xFFFFU) == tag);
    });
    acquire_pairs();
    // Pieces are of unlike lengths, all of which are in the signature.
    const bool as_long = call.pieces || what.b == tagged(bytes, number);
    if (came && (what.a != tagged(call.signature, number) || !as_long)) {
      block.give_up(P2pFault::mismatch, peer);
      came = false;
    }
    peers.input[peer] = reinterpret_cast<char*>(where.a >> 16);
    peers.output[peer] = reinterpret_cast<char*>(where.b >> 16);
    peers.input_shared[peer] = (where.a >> 16) != 0;
    peers.output_shared[peer] = (where.b >> 16) != 0;
    peers.bytes[peer] = static_cast<std::int64_t>(what.b >> 16);
  }
  return block.cta.all(came);
}

/// The part of the elements that a rank owns, of an array that all have: equal parts in whole vectors, the last
/// shorter.
WM_P2P_FN std::int64_t part_bytes(std::int64_t bytes, int world_size) {
  const std::int64_t each = (bytes + world_size - 1) / world_size;
  return (each + 15) / 16 * 16;
}

/// A reduction or copy of `bytes` bytes from the sources to the destinations.
struct Route {
  const char* sources[kMaxRanks];
  char* destinations[kMaxRanks];
  int source_count, destination_count;
  std::int64_t bytes;
};

/// Up to 16 bytes, by 16 where the address is said to be aligned so.
WM_P2P_FN void load_piece(Words16& v, const char* p, std::int64_t left, bool aligned) {
  if (aligned && left >= 16) {
    v = load16(p);
  } else {
    load_any(v.w, p, left >= 16 ? 16 : static_cast<int>(left));
  }
}
WM_P2P_FN void store_piece(char* p, const Words16& v, std::int64_t left, bool aligned) {
  if (aligned && left >= 16) {
    store16(p, v);
  } else {
    store_any(p, v.w, left >= 16 ? 16 : static_cast<int>(left));
  }
}

/// [at, at + left) of a route, at most 16 bytes, at any addresses.
template <class T>
WM_P2P_FN void move_piece(const Route& route, const P2pCall& call, std::int64_t at, std::int64_t left,
                          bool sources_aligned, bool destinations_aligned) {
  Words16 v;
  Accumulators<T, 4> total;
  load_piece(v, route.sources[0] + at, left, sources_aligned);
  total.begin(v.w);
  for (int s = 1; s < route.source_count; ++s) {
    load_piece(v, route.sources[s] + at, left, sources_aligned);
    total.add(call.op, v.w);
  }
  total.finish(call.op, call.world_size, v.w);
  for (int d = 0; d < route.destination_count; ++d) {
    store_piece(route.destinations[d] + at, v, left, destinations_aligned);
  }
}

/// kUnroll vectors of 16 bytes from every source under way at once. kSources 0: any number, four at a time.
template <class T, int kSources, int kUnroll, bool kWhole>
WM_P2P_FN void move_vectors(const Route& route, const P2pCall& call, std::int64_t at, std::int64_t stride,
                            std::int64_t end) {
  constexpr int kBatch = kSources > 0 ? kSources : 4;
  const int sources = kSources > 0 ? kSources : route.source_count;
  Accumulators<T, 4> total[kUnroll];
  for (int first = 0; first < sources; first += kBatch) {
    Words16 loaded[kBatch][kUnroll];
    WM_P2P_UNROLL
    for (int s = 0; s < kBatch; ++s) {
      if (kSources == 0 && first + s >= sources) continue;
      const char* source = route.sources[first + s] + at;
      WM_P2P_UNROLL
      for (int u = 0; u < kUnroll; ++u) {
        if (kWhole || at + u * stride < end) loaded[s][u] = load16(source + u * stride);
      }
    }
    WM_P2P_UNROLL
    for (int s = 0; s < kBatch; ++s) {
      if (kSources == 0 && first + s >= sources) continue;
      WM_P2P_UNROLL
      for (int u = 0; u < kUnroll; ++u) {
        if (!kWhole && at + u * stride >= end) continue;
        if (first + s == 0) {
          total[u].begin(loaded[s][u].w);
        } else {
          total[u].add(call.op, loaded[s][u].w);
        }
      }
    }
    if (kSources > 0) break;
  }
  WM_P2P_UNROLL
  for (int u = 0; u < kUnroll; ++u) {
    if (!kWhole && at + u * stride >= end) continue;
    Words16 result;
    total[u].finish(call.op, call.world_size, result.w);
    for (int d = 0; d < route.destination_count; ++d) store16(route.destinations[d] + at + u * stride, result);
  }
}

/// The whole grid's work on a route: whole vectors where all arrays lie alike to 16 bytes. Where not, the accesses of
/// the arrays that others have are whole (the sources of reduce_scatter, the destinations of all_gather), and this
/// rank's own are not.
template <class T, int kSources, class Cta>
WM_P2P_FN void move_route(const Route& route, const P2pCall& call, const Cta& cta) {
  constexpr int kUnroll = kSources == 0 ? 2 : kSources == 1 ? 8 : 4;
  const auto low = [](const char* p) { return reinterpret_cast<std::uintptr_t>(p) & 15U; };
  const std::uintptr_t lies =
      low(call.kind == CollectiveKind::reduce_scatter ? route.sources[0] : route.destinations[0]);
  bool sources_aligned = lies % T::kBytes == 0;  // else a vector would begin in the middle of an element
  bool destinations_aligned = sources_aligned;
  for (int s = 0; s < route.source_count; ++s) sources_aligned = sources_aligned && low(route.sources[s]) == lies;
  for (int d = 0; d < route.destination_count; ++d) {
    destinations_aligned = destinations_aligned && low(route.destinations[d]) == lies;
  }

  std::int64_t head = sources_aligned || destinations_aligned ? static_cast<std::int64_t>((16 - lies) & 15U) : 0;
  if (head > route.bytes) head = route.bytes;
  const std::int64_t threads = std::int64_t{cta.blocks()} * cta.threads();
  const std::int64_t thread = std::int64_t{cta.block()} * cta.threads() + cta.thread();
  std::int64_t at = head;
  if (head > 0 && thread == threads - 1) move_piece<T>(route, call, 0, head, false, false);
  if (sources_aligned && destinations_aligned) {
    const std::int64_t end = head + (route.bytes - head) / 16 * 16;
    // Neighbouring vectors by neighbouring threads of the grid: a short route still has work for all.
    const std::int64_t stride = threads * 16;
    const std::int64_t tile = stride * kUnroll;
    for (; at < end; at += tile) {
      const std::int64_t own = at + thread * 16;
      if (at + tile <= end) {
        move_vectors<T, kSources, kUnroll, true>(route, call, own, stride, end);
      } else {
        move_vectors<T, kSources, kUnroll, false>(route, call, own, stride, end);
      }
    }
    at = end;  // what is left is less than a vector
  }
  for (at += thread * 16; at < route.bytes; at += threads * 16) {
    move_piece<T>(route, call, at, route.bytes - at, sources_aligned, destinations_aligned);
  }
}

WM_P2P_FN bool all_shared(const bool (&shared)[kMaxRanks], int world_size) {
  bool all = true;
  for (int r = 0; r < world_size; ++r) all = all && shared[r];
  return all;
}

/// Whether two ranks out of place each read the other's whole input: as much over the link as in two shots, but reads
/// alone, and nobody's output is written by another. The same answer on every rank.
WM_P2P_FN bool pulls(const P2pCall& call, const Peers& peers) {
  if (!call.may_pull || call.world_size != 2 || call.kind != CollectiveKind::all_reduce) return false;
  return all_shared(peers.input_shared, 2) && peers.input[0] != peers.output[0] && peers.input[1] != peers.output[1];
}

/// Whether the ranks can reach what they must: the same answer on every rank.
WM_P2P_FN bool goes_directly(const P2pCall& call, const Peers& peers) {
  const bool outputs = all_shared(peers.output_shared, call.world_size);
  switch (call.kind) {
    case CollectiveKind::all_reduce:
      return (outputs && all_shared(peers.input_shared, call.world_size)) || pulls(call, peers);
    case CollectiveKind::reduce_scatter:
      return all_shared(peers.input_shared, call.world_size);
    case CollectiveKind::all_gather:
      return outputs;
    default:
      return outputs && peers.input_shared[call.root];
  }
}

/// Filled by all threads with the same values, each in its own copy: no barrier, and constant indices where unrolled.
template <int kWorld>
WM_P2P_FN Route direct_route(const P2pCall& call, const Peers& peers) {
  const int n = kWorld > 0 ? kWorld : call.world_size;
  Route route;
  route.source_count = 0;
  route.destination_count = 0;
  const bool scatters = call.kind == CollectiveKind::reduce_scatter;
  const bool gathers = call.kind == CollectiveKind::all_gather;
  const bool whole = pulls(call, peers);
  const std::int64_t each = part_bytes(call.bytes, n);
  std::int64_t begin = 0;
  route.bytes = call.bytes;
  if (!scatters && !gathers && !whole) {
    begin = call.rank * each < call.bytes ? call.rank * each : call.bytes;
    route.bytes = call.bytes - begin < each ? call.bytes - begin : each;
  }
  const std::int64_t read_at = scatters ? call.rank * call.bytes : begin;
  const std::int64_t write_at = gathers && !call.pieces ? call.rank * call.bytes : begin;  // a piece's place is told
  if (gathers || call.kind == CollectiveKind::broadcast) {
    const char* source = gathers ? call.input : peers.input[call.root];
    route.sources[route.source_count++] = source + read_at;
  } else {
    for (int r = 0; r < n; ++r) route.sources[route.source_count++] = peers.input[r] + read_at;
  }
  for (int step = 0; step < n; ++step) {
    if ((scatters || whole) && step > 0) break;
    const int r = call.rank + step < n ? call.rank + step : call.rank + step - n;
    char* destination = peers.output[r] + write_at;
    // In place there is nothing to copy, and others read there.
    if (route.source_count == 1 && destination == route.sources[0]) continue;
    route.destinations[route.destination_count++] = destination;
  }
  return route;
}

/// Whether a direct all_reduce of two ranks is reduce_pair()'s: sums of arrays on 16 bytes.
WM_P2P_FN bool is_pair(const P2pCall& call, const Peers& peers) {
  if (call.world_size != 2 || call.kind != CollectiveKind::all_reduce || pulls(call, peers)) return false;
  const bool aligned = is_aligned(peers.input[0], 16) && is_aligned(peers.input[1], 16) &&
                       is_aligned(peers.output[0], 16) && is_aligned(peers.output[1], 16);
  return aligned && (call.op == ReduceOp::sum || call.op == ReduceOp::avg);
}

/// The arrays of reduce_pair(), from the rank's part on. Every thread's own, in registers.
struct Pair {
  const char *first, *second;
  char *own, *other;
};

template <class T, int kUnroll, bool kWhole>
WM_P2P_FN void reduce_pair_vectors(const Pair& pair, ReduceOp op, std::int64_t at, std::int64_t stride,
                                   std::int64_t end) {
  Words16 a[kUnroll], b[kUnroll];
  WM_P2P_UNROLL
  for (int u = 0; u < kUnroll; ++u) {
    if (kWhole || at + u * stride < end) a[u] = load16(pair.first + at + u * stride);
  }
  WM_P2P_UNROLL
  for (int u = 0; u < kUnroll; ++u) {
    if (kWhole || at + u * stride < end) b[u] = load16(pair.second + at + u * stride);
  }
  WM_P2P_UNROLL
  for (int u = 0; u < kUnroll; ++u) {
    if (!kWhole && at + u * stride >= end) continue;
    Accumulators<T, 4> total;
    total.begin(a[u].w);
    total.add(ReduceOp::sum, b[u].w);
    total.finish(op, 2, a[u].w);
    store16(pair.own + at + u * stride, a[u]);
    store16(pair.other + at + u * stride, a[u]);
  }
}

/// The whole grid's work on a rank's part where is_pair(). As move_route() would, with twice as much under way: eight
/// blocks beside a computation keep the link as busy as sixteen did.
template <class T, class Cta>
WM_P2P_FN void reduce_pair(const P2pCall& call, const Peers& peers, const Cta& cta) {
  constexpr int kUnroll = 8;
  const std::int64_t each = part_bytes(call.bytes, 2);
  const std::int64_t begin = call.rank * each < call.bytes ? call.rank * each : call.bytes;
  const std::int64_t bytes = call.bytes - begin < each ? call.bytes - begin : each;
  const Pair pair = {peers.input[0] + begin, peers.input[1] + begin, peers.output[call.rank] + begin,
                     peers.output[1 - call.rank] + begin};
  const std::int64_t stride = std::int64_t{cta.blocks()} * cta.threads() * 16;
  const std::int64_t own = (std::int64_t{cta.block()} * cta.threads() + cta.thread()) * 16;
  const std::int64_t end = bytes / 16 * 16;
  for (std::int64_t at = 0; at < end; at += kUnroll * stride) {
    if (at + kUnroll * stride <= end) {
      reduce_pair_vectors<T, kUnroll, true>(pair, call.op, at + own, stride, end);
    } else {
      reduce_pair_vectors<T, kUnroll, false>(pair, call.op, at + own, stride, end);
    }
  }
  if (own != 0 || end == bytes) return;
  Words16 a = {}, b = {};
  load_any(a.w, pair.first + end, static_cast<int>(bytes - end));
  load_any(b.w, pair.second + end, static_cast<int>(bytes - end));
  Accumulators<T, 4> total;
  total.begin(a.w);
  total.add(ReduceOp::sum, b.w);
  total.finish(call.op, 2, a.w);
  store_any(pair.own + end, a.w, static_cast<int>(bytes - end));
  store_any(pair.other + end, a.w, static_cast<int>(bytes - end));
}

/// So many of a thread's vectors of a stage are under way at once.
constexpr int kStageBatch = 4;

/// Stages are read and written by whole vectors: what lies behind the last element is never used.
template <class Cta>
WM_P2P_FN void copy_to_stage(const Cta& cta, char* stage, const char* source, std::int64_t bytes) {
  const bool aligned = is_aligned(source, 16);
  const std::int64_t stride = std::int64_t{cta.threads()} * 16;
  for (std::int64_t at = std::int64_t{cta.thread()} * 16; at < bytes; at += kStageBatch * stride) {
    Words16 v[kStageBatch];
    WM_P2P_UNROLL
    for (int u = 0; u < kStageBatch; ++u) {
      const std::int64_t i = at + u * stride;
      if (i < bytes) load_piece(v[u], source + i, bytes - i, aligned);
    }
    WM_P2P_UNROLL
    for (int u = 0; u < kStageBatch; ++u) {
      if (at + u * stride < bytes) store16(stage + at + u * stride, v[u]);
    }
  }
}

template <class Cta>
WM_P2P_FN void copy_from_stage(const Cta& cta, char* destination, const char* stage, std::int64_t bytes) {
  const bool aligned = is_aligned(destination, 16);
  const std::int64_t stride = std::int64_t{cta.threads()} * 16;
  for (std::int64_t at = std::int64_t{cta.thread()} * 16; at < bytes; at += kStageBatch * stride) {
    Words16 v[kStageBatch];
    WM_P2P_UNROLL
    for (int u = 0; u < kStageBatch; ++u) {
      if (at + u * stride < bytes) v[u] = load16(stage + at + u * stride);
    }
    WM_P2P_UNROLL
    for (int u = 0; u < kStageBatch; ++u) {
      const std::int64_t i = at + u * stride;
      if (i < bytes) store_piece(destination + i, v[u], bytes - i, aligned);
    }
  }
}

/// How a staged call is divided. One-shot: two ranks send each other all of it; then stage B has nothing to carry.
struct StagedShape {
  bool scatters, gathers, broadcasts, one_shot;
  std::int64_t each;   ///< bytes of a rank's part; of pieces, of the longest
  std::int64_t bytes;  ///< of an array that has all parts, or of one part where the array's are equal
  std::int64_t chunk;
  const std::int64_t* pieces = nullptr;  ///< by rank, their bytes; null where parts are of one array

  WM_P2P_FN StagedShape(const P2pCall& call, const Peers& peers)
      : scatters(call.kind == CollectiveKind::reduce_scatter),
        gathers(call.kind == CollectiveKind::all_gather),
        broadcasts(call.kind == CollectiveKind::broadcast),
        one_shot(call.world_size == 2 && !scatters && !gathers),
        each(scatters || gathers || one_shot ? call.bytes : part_bytes(call.bytes, call.world_size)),
        bytes(call.bytes),
        chunk(call.layout.stage_bytes) {
    if (!call.pieces) return;
    pieces = peers.bytes;
    for (int r = 0; r < call.world_size; ++r) each = each < pieces[r] ? pieces[r] : each;
  }
  [[nodiscard]] WM_P2P_FN std::int64_t part_at(int rank) const { return one_shot ? 0 : rank * each; }
  /// Of a rank's part, in the chunk at `at` of it.
  [[nodiscard]] WM_P2P_FN std::int64_t bytes_in(int rank, std::int64_t at) const {
    std::int64_t part = each;
    if (pieces != nullptr) part = pieces[rank];
    if (!scatters && !gathers && bytes - part_at(rank) < each) part = bytes - part_at(rank);
    const std::int64_t left = part - at;
    return left < 0 ? 0 : left < chunk ? left : chunk;
  }
};

/// Where a rank's part of the result belongs here.
WM_P2P_FN char* part_of_output(const P2pCall& call, const StagedShape& shape, int rank) {
  if (call.pieces) return reinterpret_cast<char*>(call.input_at[rank]);
  return call.output + shape.part_at(rank);
}

/// The rank's own part of a chunk: out of its input and stage A into its output and its peers' stage B.
template <class T, class Cta>
WM_P2P_FN void reduce_stage(const Block<Cta>& block, const StagedShape& shape, std::int64_t at, unsigned side) {
  const P2pCall& call = block.call;
  const Cta& cta = block.cta;
  const int n = call.world_size;
  const int rank = call.rank;
  const std::int64_t mine = shape.bytes_in(rank, at);
  const char* own = call.input + (shape.gathers ? at : shape.part_at(rank) + at);
  char* result = (shape.scatters ? call.output : part_of_output(call, shape, rank)) + at;
  const bool own_aligned = is_aligned(own, 16);
  const bool result_aligned = is_aligned(result, 16);
  const bool takes_own = T::kBytes > 1 || shape.gathers || rank == call.root;
  const bool pushes = !shape.scatters && !shape.one_shot;
  const std::int64_t stride = std::int64_t{cta.threads()} * 16;
  for (std::int64_t first = std::int64_t{cta.thread()} * 16; first < mine; first += kStageBatch * stride) {
    Words16 v[kStageBatch];
    Accumulators<T, 4> total[kStageBatch];
    for (int source = 0; source < n; ++source) {
      if (T::kBytes == 1 && source != (takes_own ? rank : call.root)) continue;
      const char* stage = block.stage(call.layout.stage_a, rank, side, source);
      WM_P2P_UNROLL
      for (int u = 0; u < kStageBatch; ++u) {
        const std::int64_t i = first + u * stride;
        if (i >= mine) continue;
        if (source == rank) {
          load_piece(v[u], own + i, mine - i, own_aligned);
        } else {
          v[u] = load16(stage + i);
        }
      }
      WM_P2P_UNROLL
      for (int u = 0; u < kStageBatch; ++u) {
        if (first + u * stride >= mine) continue;
        if (source == 0 || T::kBytes == 1) {
          total[u].begin(v[u].w);
        } else {
          total[u].add(call.op, v[u].w);
        }
      }
    }
    WM_P2P_UNROLL
    for (int u = 0; u < kStageBatch; ++u) {
      const std::int64_t i = first + u * stride;
      if (i >= mine) continue;
      total[u].finish(call.op, n, v[u].w);
      if (T::kBytes > 1 || !takes_own || own != result) store_piece(result + i, v[u], mine - i, result_aligned);
      for (int step = 1; step < n && pushes; ++step) {
        const int peer = rank + step < n ? rank + step : rank + step - n;
        store16(block.stage(call.layout.stage_b, peer, side, rank) + i, v[u]);
      }
    }
  }
}

template <class T, class Cta>
WM_P2P_FN void staged(Block<Cta>& block, const Peers& peers) {
  const P2pCall& call = block.call;
  Cta& cta = block.cta;
  const int n = call.world_size;
  const int rank = call.rank;
  const StagedShape shape(call, peers);
  const std::int64_t round = shape.chunk * cta.blocks();
  const std::int64_t rounds = (shape.each + round - 1) / round;
  std::uint32_t number = block.state()->chunks;

  for (std::int64_t r = 0; r < rounds; ++r) {
    const std::int64_t at = (r * cta.blocks() + cta.block()) * shape.chunk;
    const unsigned side = ++number & 1U;
    if (!shape.gathers) {
      for (int step = 1; step < n && (!shape.broadcasts || rank == call.root); ++step) {
        const int peer = rank + step < n ? rank + step : rank + step - n;
        copy_to_stage(cta, block.stage(call.layout.stage_a, peer, side, rank), call.input + shape.part_at(peer) + at,
                      shape.bytes_in(peer, at));
      }
      if (!block.meet(call.layout.stage_a_flags, number)) return;
    }
    reduce_stage<T>(block, shape, at, side);
    if (shape.scatters || shape.one_shot) continue;

    if (!block.meet(call.layout.stage_b_flags, number)) return;
    for (int source = 0; source < n; ++source) {
      // A broadcast's root has it all where it is in place.
      if (source == rank || (shape.broadcasts && rank == call.root && call.input == call.output)) continue;
      copy_from_stage(cta, part_of_output(call, shape, source) + at,
                      block.stage(call.layout.stage_b, rank, side, source), shape.bytes_in(source, at));
    }
  }
  cta.sync();  // all have read the number
  if (cta.thread() == 0) block.state()->chunks = number;
}

/// kWorld: the number of ranks where known when compiled, else 0.
template <class T, int kWorld, class Cta>
WM_P2P_FN void run_bulk(const P2pCall& call, Cta& cta, Peers& peers) {
  Block<Cta> block{call, cta};
  const std::uint32_t number = block.state()->bulk_calls + 1;
  if (!exchange(block, number, peers)) return;
  if (goes_directly(call, peers)) {
    bool done = false;
    if constexpr (T::kBytes > 1 && kWorld == 2) {
      done = is_pair(call, peers);
      if (done) reduce_pair<T>(call, peers, cta);
    }
    if (!done) {
      const Route route = direct_route<kWorld>(call, peers);
      if (route.destination_count > 0) move_route<T, T::kBytes == 1 ? 1 : kWorld>(route, call, cta);
    }
    if (!block.meet(call.layout.end_flags, number)) return;
  } else {
    staged<T>(block, peers);
    cta.sync();
  }
  if (cta.thread() == 0) block.state()->bulk_calls = number;
}

}  // namespace warpmeter::collectives::p2p
