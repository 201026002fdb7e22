#include <cstring>

#include "kernels/layers/detail/operations.hpp"
#include "kernels/layers/detail/over_rows.hpp"
#include "kernels/layers/detail/row_kernels.hpp"

namespace warpmeter::layers::cpu {

namespace {
constexpr std::int64_t kPiece = 4096;
}

void elementwise(const Context&, const Elementwise& arguments) {
  const detail::RowKernels& kernels = detail::row_kernels(arguments.dtype);
  const std::size_t bytes = size_of(arguments.dtype);
  detail::over_pieces(arguments.count, kPiece, [&](std::int64_t begin, std::int64_t count) {
    const void* a = detail::at(arguments.a, begin, bytes);
    void* out = detail::at(arguments.out, begin, bytes);
    if (arguments.operation == ElementwiseOperation::silu) return kernels.silu(a, out, count);
    const void* b = detail::at(arguments.b, begin, bytes);
    switch (arguments.operation) {
      case ElementwiseOperation::add:
        return kernels.add(a, b, out, count);
      case ElementwiseOperation::multiply:
        return kernels.multiply(a, b, out, count);
      case ElementwiseOperation::silu_backward:
        return kernels.silu_backward(a, b, out, count);
      case ElementwiseOperation::silu:
        break;
    }
  });
}

void convert(const Context&, const Convert& arguments) {
  const detail::RowKernels& from = detail::row_kernels(arguments.in_dtype);
  const detail::RowKernels& to = detail::row_kernels(arguments.out_dtype);
  const std::size_t in_bytes = size_of(arguments.in_dtype), out_bytes = size_of(arguments.out_dtype);
  detail::over_pieces(arguments.count, kPiece, [&](std::int64_t begin, std::int64_t count) {
    float values[kPiece];
    from.to_float(detail::at(arguments.in, begin, in_bytes), values, count);
    to.from_float(values, detail::at(arguments.out, begin, out_bytes), count);
  });
}

}  // namespace warpmeter::layers::cpu
