#pragma once

#include "kernels/attention/detail/decode_kernels.hpp"
#include "kernels/attention/detail/flash_micro.hpp"

/// How a stream of the CPU's flash decoding reads keys and values.
///
/// In one order: K of a block, then V of it, all heads of a page one after the other. What lies a little further on in
/// that order (Shape::ahead_bytes) is asked for, where the caches do not hold it: into the second-level cache, since a
/// request for the first level holds one of its few miss buffers until memory answers.
///
/// bf16 rows are read by pairs. Widening them one vector at a time takes more instructions a byte than memory leaves
/// time for; of two vectors the even elements are a shift away and the odd ones a mask. Queries and output stand in
/// that order while a stream works.
namespace warpmeter::attention::WM_ISA {

using decode_detail::Ahead;

/// bf16 rows whose vectors are read two by two, the even elements first.
struct Bf16Pairs {
  std::uint16_t bits;
};
template <class T>
inline constexpr bool kInPairs = false;
template <>
inline constexpr bool kInPairs<Bf16Pairs> = true;

/// Two vectors of a row, in the order that T has them.
template <class T>
WM_INLINE void load_two(const T* p, Vec& first, Vec& second) {
  if constexpr (kInPairs<T>) {
    UintVec words;
    __builtin_memcpy(&words, p, sizeof(words));
    first = bit_cast_vec<Vec>(words << 16);
    second = bit_cast_vec<Vec>(words & 0xFFFF0000u);
  } else {
    first = load(p);
    second = load(p + kWidth);
  }
}

/// Where a key's row is, in elements from the first key's of head 0 in page 0.
WM_INLINE Index row_of(const decode_detail::Stream& stream, Index key) {
  return stream.pages[key / stream.page_size] * stream.page_stride + key % stream.page_size * stream.row_stride;
}

/// Calls body(offset, k row, v row, count) for each piece of keys [first, first + count) that lies in one page; the
/// rows are those of the first head.
template <class T, class Body>
WM_INLINE void for_runs(const decode_detail::Stream& stream, Index first, Index count, Body&& body) {
  for (Index done = 0; done < count;) {
    const Index key = first + done;
    const Index run = min_of(stream.page_size - key % stream.page_size, count - done);
    const Index at = row_of(stream, key);
    body(done, static_cast<const T*>(stream.k) + at, static_cast<const T*>(stream.v) + at, run);
    done += run;
  }
}

/// Rows that are asked for at once.
inline constexpr Index kAskRows = 4;

/// While `run` rows are worked on that are followed by those of `to` (K or V) of a head from `key` on.
template <class T>
WM_INLINE Ahead ahead_of(const decode_detail::Stream& stream, Index run, const void* to, Index head, Index key) {
  Ahead ahead;
  if (stream.shape->ahead_bytes == 0 || key >= stream.length) return ahead;
  ahead.next =
      reinterpret_cast<const char*>(static_cast<const T*>(to) + head * stream.head_stride + row_of(stream, key));
  const Index row_bytes = stream.row_stride * static_cast<Index>(sizeof(T));
  ahead.rows = min_of(round_up(max_of(stream.shape->ahead_bytes / row_bytes, 1), kAskRows), run);
  return ahead;
}
/// Where the rows ahead of row `row` of a run of `count` begin.
template <class T>
WM_INLINE const char* rows_ahead(const Ahead& ahead, const T* rows, Index stride, Index count, Index row) {
  const Index at = row + ahead.rows;
  const Index bytes = stride * static_cast<Index>(sizeof(T));
  return (at < count ? reinterpret_cast<const char*>(rows) : ahead.next - count * bytes) + at * bytes;
}
/// Asks for one cache line of two: its neighbour comes along, and every request takes a place that a read could have.
WM_INLINE void ask_for(const char* start, Index bytes) {
#pragma GCC unroll 8
  for (Index at = 0; at < bytes; at += 128) __builtin_prefetch(start + at, 0, 2);
}

}  // namespace warpmeter::attention::WM_ISA
