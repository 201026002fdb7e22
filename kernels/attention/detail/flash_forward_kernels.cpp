// The forward of the CPU flash attention, compiled once an instruction set.
//
// A block of queries walks over the keys that it sees. Scores are kept transposed, S^T (keys, queries), a panel of
// queries at a time: K's rows are read in place (A of the product), only Q is transposed, once a block; the row
// maximum and sum of the softmax run down the vectors' lanes, without a horizontal step; P^T is A of P V as it lies.
// Blocks above the diagonal are never computed, and inside the diagonal blocks each product is cut to the keys that
// its rows see, to the granularity of a register block.
//
// Scores and their maximum stay as Q K^T gives them; the difference to the maximum, nearly exact, is what scale *
// log2(e) is multiplied into. Folding it into Q would cost digits where scores are large.

#include "kernels/attention/detail/flash_micro.hpp"

namespace warpmeter::attention::WM_ISA {
namespace {

using flash_detail::ForwardBlock;
using flash_detail::kKeyBlock;
using flash_detail::kQueryBlock;
using flash_detail::Shape;

constexpr float kMinusInfinity = -__builtin_inff();
/// Rows of S^T are this far apart: off the powers of two, which would fall into few cache sets.
constexpr Index kScoreStride = kPanel + kWidth;

/// What one forward block works in.
struct Workspace {
  float *queries_t, *output, *scores, *maximum, *sum, *correction, *keys, *values;
  Index total;

  explicit Workspace(const Shape& shape, float* scratch = nullptr) {
    const Index rows = min_of(kQueryBlock, round_up(shape.seq_len, kWidth));
    const Index keys_count = min_of(kKeyBlock, shape.kv_len);
    const Index padded = round_up(shape.head_dim, kWidth);
    Pieces pieces(scratch);
    queries_t = pieces.take<float>(rows * shape.head_dim);
    output = pieces.take<float>(rows * padded);
    scores = pieces.take<float>(keys_count * kScoreStride);
    maximum = pieces.take<float>(rows);
    sum = pieces.take<float>(rows);
    correction = pieces.take<float>(rows);
    keys = pieces.take<float>(shape.element == Element::fp32 ? 0 : keys_count * padded);
    values = pieces.take<float>(values_in_place(shape) ? 0 : keys_count * padded);
    total = pieces.total();
  }

  static bool values_in_place(const Shape& shape) {
    return shape.element == Element::fp32 && shape.head_dim % kWidth == 0;
  }
};

/// S^T of MR keys and a panel of queries, and the running maximum down the keys. masked: key `key + i` (counted from
/// the block's first) is hidden from the lanes where visible[lane] <= key + i.
template <int MR, int NV, bool masked>
[[gnu::noinline]] void score(const float* __restrict keys, Index stride, const float* __restrict queries_t, Index depth,
                             float* __restrict scores, float* __restrict maximum, const std::int32_t* visible,
                             Index key) {
  Vec acc[MR][NV];
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) acc[i][v] = Vec{};
  }
  multiply<MR, NV, ALayout::row_major>(keys, stride, queries_t, NV * kWidth, depth, acc);
#pragma GCC unroll 4
  for (int v = 0; v < NV; ++v) {
    IntVec seen{};
    if constexpr (masked) __builtin_memcpy(&seen, visible + v * kWidth, sizeof(seen));
    Vec top = load(maximum + v * kWidth);
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i) {
      if constexpr (masked) {
        acc[i][v] = broadcast_int(static_cast<std::int32_t>(key + i)) < seen ? acc[i][v] : broadcast(kMinusInfinity);
      }
      store(scores + i * kScoreStride + v * kWidth, acc[i][v]);
      top = max(top, acc[i][v]);
    }
    store(maximum + v * kWidth, top);
  }
}

/// scores = 2^((scores - maximum) * factor) over `keys` rows; adds each lane's sum to `sum`.
template <int NV>
[[gnu::noinline]] void exponentiate(float* __restrict scores, Index keys, float factor, const float* __restrict maximum,
                                    float* __restrict sum) {
  Vec top[NV], total[NV];
#pragma GCC unroll 4
  for (int v = 0; v < NV; ++v) {
    const Vec m = load(maximum + v * kWidth);
    top[v] = m == broadcast(kMinusInfinity) ? Vec{} : m;  // nothing visible yet: -inf - 0, not -inf + inf
    total[v] = load(sum + v * kWidth);
  }
  for (Index key = 0; key < keys; ++key) {
    float* row = scores + key * kScoreStride;
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) {
      const Vec p = exp2_probability((load(row + v * kWidth) - top[v]) * factor);
      total[v] += p;
      store(row + v * kWidth, p);
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < NV; ++v) store(sum + v * kWidth, total[v]);
}

template <class T>
void forward_block(const ForwardBlock& block) {
  const Shape& shape = block.shape;
  const Index head_dim = shape.head_dim;
  const Index padded = round_up(head_dim, kWidth);
  const Workspace work(shape, block.scratch);
  const Panels query_panels(vectors_of(block.rows));
  const Panels value_panels(padded / kWidth);
  const Index lanes = query_panels.total * kWidth;

  const T* const q = static_cast<const T*>(block.q.data) + block.first * block.q.stride;
  for (Index p = 0; p < query_panels.count; ++p) {
    const Index row = query_panels.begin(p) * kWidth;
    const Index width = query_panels.size(p) * kWidth;
    pack_transposed(q + row * block.q.stride, block.q.stride, min_of(width, block.rows - row), width, head_dim,
                    work.queries_t + row * head_dim, width);
  }
  for (Index i = 0; i < lanes; ++i) {
    work.maximum[i] = kMinusInfinity;
    work.sum[i] = 0;
  }
  for (Index i = 0; i < block.rows * padded; ++i) work.output[i] = 0;

  const float factor = shape.scale * kLog2e;
  const Index all_keys = visible_keys(shape, block.first + block.rows - 1);
  for (Index key0 = 0; key0 < all_keys; key0 += kKeyBlock) {
    const Index key_count = min_of(kKeyBlock, all_keys - key0);
    const T* const k = static_cast<const T*>(block.k.data) + key0 * block.k.stride;
    const T* const v = static_cast<const T*>(block.v.data) + key0 * block.v.stride;
    const float *keys, *values;
    Index key_stride = padded, value_stride = padded;
    if constexpr (sizeof(T) == sizeof(float)) {
      keys = reinterpret_cast<const float*>(k);
      key_stride = block.k.stride;
    } else {
      pack_rows(k, block.k.stride, key_count, head_dim, work.keys, padded);
      keys = work.keys;
    }
    if (Workspace::values_in_place(shape)) {
      values = reinterpret_cast<const float*>(v);
      value_stride = block.v.stride;
    } else {
      pack_rows(v, block.v.stride, key_count, head_dim, work.values, padded);
      values = work.values;
    }

    for (Index p = 0; p < query_panels.count; ++p) {
      const Index row0 = query_panels.begin(p) * kWidth;
      const Index row_count = min_of(query_panels.size(p) * kWidth, block.rows - row0);
      // Keys of this block that query `row` of this panel sees.
      const auto seen_by = [&](Index row) {
        return clamp_of(visible_keys(shape, block.first + row0 + row) - key0, 0, key_count);
      };
      const Index seen_by_all = seen_by(0);
      const Index panel_keys = seen_by(row_count - 1);
      if (panel_keys == 0) continue;
      std::int32_t visible[kPanel];
      if (seen_by_all < panel_keys) {
        for (Index i = 0; i < kPanel; ++i) visible[i] = static_cast<std::int32_t>(seen_by(min_of(i, row_count - 1)));
      }

      for_vectors(
          query_panels.size(p), [&]<int NV>() __attribute__((always_inline)) {
            for (int i = 0; i < NV; ++i) {
              store(work.correction + row0 + i * kWidth, load(work.maximum + row0 + i * kWidth));
            }
            for_row_groups<NV>(
                panel_keys, [&]<int MR>(Index key) __attribute__((always_inline)) {
                  const auto run = key + MR <= seen_by_all ? score<MR, NV, false> : score<MR, NV, true>;
                  run(keys + key * key_stride, key_stride, work.queries_t + row0 * head_dim, head_dim,
                      work.scores + key * kScoreStride, work.maximum + row0, visible, key);
                });
            for (int i = 0; i < NV; ++i) {
              float* const at = work.correction + row0 + i * kWidth;
              const Vec now = load(work.maximum + row0 + i * kWidth);
              const Vec top = now == broadcast(kMinusInfinity) ? Vec{} : now;
              const Vec shrink = exp2_probability((load(at) - top) * factor);
              store(at, shrink);
              store(work.sum + row0 + i * kWidth, load(work.sum + row0 + i * kWidth) * shrink);
            }
            exponentiate<NV>(work.scores, panel_keys, factor, work.maximum + row0, work.sum + row0);
          });

      for (Index vp = 0; vp < value_panels.count; ++vp) {
        const Index column = value_panels.begin(vp) * kWidth;
        for_vectors(
            value_panels.size(vp), [&]<int NV>() __attribute__((always_inline)) {
              for_row_groups<NV>(
                  row_count, [&]<int MR>(Index row) __attribute__((always_inline)) {
                    const Index depth = seen_by(row + MR - 1);
                    if (depth == 0) return;
                    product<MR, NV, ALayout::column_major, CMode::scale_add>(
                        work.scores + row, kScoreStride, values + column, value_stride, depth,
                        work.output + (row0 + row) * padded + column, padded, work.correction + row0 + row);
                  });
            });
      }
    }
  }

  for (Index row = 0; row < block.rows; ++row) {
    float* const o = work.output + row * padded;
    const float total = work.sum[row];
    const Vec inverse = broadcast(total == 0 ? 0 : 1 / total);
    for (Index k = 0; k < padded; k += kWidth) store(o + k, load(o + k) * inverse);
    write_lse(block, row, work.maximum[row], total);
  }
  write_rows(work.output, padded, block.rows, head_dim, 1.0f,
             static_cast<T*>(block.o.data) + block.first * block.o.stride, block.o.stride);
}

}  // namespace

std::int64_t flash_forward_scratch(const Shape& shape) {
  return Workspace(shape).total;
}

void flash_forward(const ForwardBlock& block) {
  for_element(block.shape.element, [&]<class T>(T*) { forward_block<T>(block); });
}

}  // namespace warpmeter::attention::WM_ISA
