// outer_mul_relu_backward: dx[i,j] = dz[i,j] * y[i] where x[i,j] * y[i] > 0, else 0: the notes' puzzle 6, the
// gradient of z[i,j] = max(x[i,j] * y[i], 0).
//
//   x, dz, dx (rows, cols), y (rows), fp32, bf16 or fp16; multiplied in fp32
//   grid   x: blocks of 128 pieces of 16 bytes along the columns; y: blocks of 2 rows. A thread has its pieces of both
//          under way
//   bound  memory: two arrays are read, one is written
#include "kernels/primer/kernel_file.hpp"

namespace warpmeter::primer::outer_mul_relu_backward::WM_PRIMER_PART {

#if WM_PRIMER_DESCRIBES
Kernel describe() {
  Kernel kernel;
  kernel.formula = "dx[i,j] = dz[i,j] * y[i] where x[i,j] * y[i] > 0, else 0";
  kernel.layout = "x, dz, dx (rows, cols), y (rows)";
  kernel.pass = "bwd";
  kernel.sizes = {Size::rows, Size::cols};
  kernel.bench = {.rows = 4096, .cols = 4096};
  kernel.notes = {.rows = 90, .cols = 100};
  kernel.inputs = [](const Problem& p) {
    return TensorSpecs{{"x", {p.rows, p.cols}, p.dtype}, {"y", {p.rows}, p.dtype}, {"dz", {p.rows, p.cols}, p.dtype}};
  };
  kernel.outputs = [](const Problem& p) { return TensorSpecs{{"dx", {p.rows, p.cols}, p.dtype}}; };
  kernel.flops = [](const Problem& p) { return 2.0 * static_cast<double>(p.rows * p.cols); };
  kernel.reference = [](const Problem& p, const HostTensors& in, int, std::int64_t i) {
    const double y = in[1][i / p.cols];
    return in[0][i] * y > 0 ? in[2][i] * y : 0.0;
  };
  return kernel;
}
#endif

#if WM_PRIMER_CPU
void run(const Problem& p, const Arguments& a) {
  by_dtype(p.dtype, [&](auto type) {
    using T = decltype(type);
    const T* const y = a.input<T>(1);
    const std::size_t bytes = 3 * p.rows * p.cols * sizeof(T);
    const bool past_cache = cpu_tools::exceeds_cache(bytes);
    for_parts(p.rows, 1, static_cast<double>(bytes), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* const x = a.input<T>(0) + row * p.cols;
        const T* const dz = a.input<T>(2) + row * p.cols;
        const float factor = to_float(y[row]);
        write_row(a.output<T>(0) + row * p.cols, p.cols, past_cache, [&](auto elements) WM_INLINE_LAMBDA {
          const Vec gradient = elements.load(dz) * factor;
          return elements.load(x) * factor > Vec{} ? gradient : Vec{};
        });
      }
    });
  });
}
#endif

#if WM_PRIMER_CUDA
constexpr int kThreads = 128;
constexpr int kRows = 2;  // of a block

template <class T, bool kWhole>
__global__ void __launch_bounds__(kThreads)
    kernel(const T* x, const T* y, const T* dz, T* dx, std::int64_t rows, std::int64_t cols) {
  const std::int64_t col = (blockIdx.x * std::int64_t{kThreads} + threadIdx.x) * kPack<T>;
  if (col >= cols) return;
  for (std::int64_t first = blockIdx.y * std::int64_t{kRows}; first < rows; first += gridDim.y * std::int64_t{kRows}) {
    uint4 raw_x[kRows], raw_dz[kRows];
#pragma unroll
    for (int u = 0; u < kRows; ++u) {
      const std::int64_t at = (first + u) * cols + col;
      const std::int64_t left = first + u < rows ? cols - col : 0;  // nothing is there below the last row
      raw_x[u] = load_pack<T, kWhole>(x + at, left);
      raw_dz[u] = load_pack<T, kWhole>(dz + at, left);
    }
#pragma unroll
    for (int u = 0; u < kRows; ++u) {
      if (first + u >= rows) break;
      const float factor = to_float(y[first + u]);
      float of_x[kPack<T>], values[kPack<T>];
      unpack<T>(raw_x[u], of_x);
      unpack<T>(raw_dz[u], values);
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) values[i] = of_x[i] * factor > 0.0f ? values[i] * factor : 0.0f;
      store_pack<T, kWhole>(dx + (first + u) * cols + col, cols - col, values);
    }
  }
}

void run(const Problem& p, const Arguments& a, StreamView stream) {
  by_dtype_and_rows(p, [&](auto type, auto whole) {
    using T = typename decltype(type)::type;
    const dim3 blocks(grid_x(ceil_div(p.cols, kThreads * kPack<T>)), grid_yz(ceil_div(p.rows, kRows)));
    kernel<T, whole()><<<blocks, kThreads, 0, handle(stream)>>>(a.input<T>(0), a.input<T>(1), a.input<T>(2),
                                                                a.output<T>(0), p.rows, p.cols);
    check_launch();
  });
}
#endif

}  // namespace warpmeter::primer::outer_mul_relu_backward::WM_PRIMER_PART
