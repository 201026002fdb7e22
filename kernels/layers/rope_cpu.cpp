#include "kernels/layers/detail/operations.hpp"
#include "kernels/layers/detail/over_rows.hpp"
#include "kernels/layers/detail/row_kernels.hpp"

namespace warpmeter::layers::cpu {

void rope(const Context&, const RopeArguments& a) {
  const detail::RowKernels& kernels = detail::row_kernels(a.dtype);
  const std::size_t bytes = size_of(a.dtype);
  const auto turn = [&](const void* in, void* out, std::int64_t row) {
    const float* table = a.table + row % a.seq_len * a.head_dim;
    for (std::int64_t head = 0; head < a.heads; ++head) {
      kernels.rope(table, detail::at(in, row * a.in_stride + head * a.head_dim, bytes),
                   detail::at(out, row * a.out_stride + head * a.head_dim, bytes), a.head_dim, a.inverse);
    }
  };
  detail::over_rows(a.rows, a.heads * a.head_dim, [&](std::int64_t row) {
    turn(a.q_in, a.q_out, row);
    if (a.k_in != nullptr) turn(a.k_in, a.k_out, row);
  });
}

}  // namespace warpmeter::layers::cpu
