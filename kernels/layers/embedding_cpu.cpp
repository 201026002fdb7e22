#include <algorithm>
#include <cstring>
#include <string>

#include "kernels/layers/detail/operations.hpp"
#include "kernels/layers/detail/over_rows.hpp"
#include "kernels/layers/detail/row_kernels.hpp"
#include "kernels/runtime/check.hpp"

namespace warpmeter::layers::cpu {

namespace {

constexpr std::int64_t kColumns = 512;  // of a row summed at once

void check_token(std::int32_t token, std::int64_t vocab) {
  WM_CHECK(token >= 0 && token < vocab, "token " + std::to_string(token) + " lies outside the vocabulary");
}

}  // namespace

void embedding_forward(const Context&, const EmbeddingForward& a) {
  const std::size_t bytes = size_of(a.dtype);
  detail::over_rows(a.rows, a.width, [&](std::int64_t row) {
    check_token(a.tokens[row], a.vocab);
    std::memcpy(detail::at(a.out, row * a.width, bytes), detail::at(a.table, a.tokens[row] * a.width, bytes),
                static_cast<std::size_t>(a.width) * bytes);
  });
}

std::size_t workspace_bytes(const EmbeddingBackward& a) {
  return static_cast<std::size_t>(a.vocab + 1 + a.rows) * sizeof(std::int32_t);
}

void embedding_backward(const Context&, const EmbeddingBackward& a) {
  // Rows by token: those of token t are order[first[t]] .. order[first[t + 1] - 1], in their own order.
  auto* first = static_cast<std::int32_t*>(a.workspace);
  std::int32_t* order = first + a.vocab + 1;
  std::fill_n(first, a.vocab + 1, 0);
  for (std::int64_t row = 0; row < a.rows; ++row) {
    check_token(a.tokens[row], a.vocab);
    ++first[a.tokens[row]];
  }
  std::int32_t sum = 0;
  for (std::int64_t t = 0; t <= a.vocab; ++t) sum = (first[t] += sum);
  for (std::int64_t row = a.rows; row-- > 0;) order[--first[a.tokens[row]]] = static_cast<std::int32_t>(row);

  const detail::RowKernels& in = detail::row_kernels(a.dtype);
  const detail::RowKernels& out = detail::row_kernels(a.gradient_dtype);
  const std::size_t in_bytes = size_of(a.dtype), out_bytes = size_of(a.gradient_dtype);
  detail::over_rows(a.vocab, a.width, [&](std::int64_t token) {
    const std::int32_t begin = first[token], end = first[token + 1];
    if (begin == end && a.accumulate) return;
    float total[kColumns];
    for (std::int64_t column = 0; column < a.width; column += kColumns) {
      const std::int64_t columns = std::min(kColumns, a.width - column);
      void* place = detail::at(a.d_table, token * a.width + column, out_bytes);
      if (a.accumulate) {
        out.to_float(place, total, columns);
      } else {
        std::fill_n(total, columns, 0.0f);
      }
      for (std::int32_t i = begin; i < end; ++i) {
        in.add_to_float(detail::at(a.d_out, order[i] * a.width + column, in_bytes), total, columns);
      }
      out.from_float(total, place, columns);
    }
  });
}

}  // namespace warpmeter::layers::cpu
