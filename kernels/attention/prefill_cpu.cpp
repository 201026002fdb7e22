#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "kernels/attention/detail/parallel_work.hpp"
#include "kernels/attention/detail/prefill_steps.hpp"
#include "kernels/attention/detail/row_ops.hpp"

namespace warpmeter::attention::detail {

void kv_gather_cpu(const KvGather& gather) {
  const KvView& view = gather.view;
  const RowOps& from = row_ops(view.dtype);
  const RowOps& to = row_ops(gather.dtype);
  const auto cache_bytes = static_cast<std::int64_t>(size_of(view.dtype));
  const auto bytes = static_cast<std::int64_t>(size_of(gather.dtype));
  constexpr std::int64_t kRows = 256;
  const std::int64_t pieces = (gather.length + kRows - 1) / kRows;
  parallel_for_work(
      view.num_kv_heads * pieces, static_cast<double>(kRows * view.head_dim) / 4, [&](std::int64_t index, int) {
        const std::int64_t h = index / pieces;
        const std::int64_t first = index % pieces * kRows;
        std::array<float, 256> row;
        for (std::int64_t t = first; t < std::min(first + kRows, gather.length); ++t) {
          const std::int64_t page = view.pages[gather.sequence * view.pages_stride + t / view.page_size];
          const std::int64_t at = page * view.page_stride + h * view.head_stride + t % view.page_size * view.row_stride;
          const std::int64_t out = (h * gather.length + t) * view.head_dim;
          from.to_float(static_cast<const char*>(view.k) + at * cache_bytes, row.data(), view.head_dim);
          to.from_float(row.data(), static_cast<char*>(gather.k) + out * bytes, view.head_dim);
          from.to_float(static_cast<const char*>(view.v) + at * cache_bytes, row.data(), view.head_dim);
          to.from_float(row.data(), static_cast<char*>(gather.v) + out * bytes, view.head_dim);
        }
      });
}

void merge_normalized_cpu(const NormalizedParts& parts) {
  const RowOps& ops = row_ops(parts.dtype);
  const auto bytes = static_cast<std::int64_t>(size_of(parts.dtype));
  const double row_ns = static_cast<double>(parts.parts * parts.head_dim);
  parallel_for_work(parts.heads * parts.rows, row_ns, [&](std::int64_t index, int) {
    const std::int64_t h = index / parts.rows;
    const std::int64_t r = index % parts.rows;
    const auto lse_of = [&](std::int64_t p) -> double { return parts.lse[(p * parts.heads + h) * parts.rows + r]; };
    constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
    double top = kMinusInfinity;
    bool seen = false;  // a part that is NaN has seen something
    for (std::int64_t p = 0; p < parts.parts; ++p) {
      top = std::max(top, lse_of(p));
      seen = seen || lse_of(p) != kMinusInfinity;
    }
    std::array<float, 256> sum{}, part;
    double lse = kMinusInfinity;
    if (seen) {
      double total = 0;
      for (std::int64_t p = 0; p < parts.parts; ++p) total += std::exp(lse_of(p) - top);
      lse = top + std::log(total);
      for (std::int64_t p = 0; p < parts.parts; ++p) {
        const auto weight = static_cast<float>(std::exp(lse_of(p) - lse));
        if (weight == 0) continue;
        const std::int64_t at = ((p * parts.heads + h) * parts.rows + r) * parts.head_dim;
        ops.to_float(static_cast<const char*>(parts.o) + at * bytes, part.data(), parts.head_dim);
        for (std::int64_t c = 0; c < parts.head_dim; ++c) {
          sum[static_cast<std::size_t>(c)] += weight * part[static_cast<std::size_t>(c)];
        }
      }
    }
    const std::int64_t to = h * parts.out.head_stride + r * parts.out.row_stride;
    ops.from_float(sum.data(), static_cast<char*>(parts.out.data) + to * bytes, parts.head_dim);
    parts.out_lse[index] = static_cast<float>(lse);
  });
}

}  // namespace warpmeter::attention::detail
