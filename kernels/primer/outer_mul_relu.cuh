// outer_mul_relu: z[i,j] = max(x[j] * y[i], 0), the notes' puzzle 5.
//
//   x (cols), y (rows), z (rows, cols), fp32, bf16 or fp16; multiplied in fp32
//   grid   x: blocks of 256 pieces of 16 bytes along the columns; y: blocks of 4 rows. A thread keeps its piece of x
//          and goes down the rows
//   bound  memory: next to nothing is read, and the result is written once
#include <algorithm>

#include "kernels/primer/kernel_file.hpp"

namespace warpmeter::primer::outer_mul_relu::WM_PRIMER_PART {

#if WM_PRIMER_DESCRIBES
Kernel describe() {
  Kernel kernel;
  kernel.formula = "z[i,j] = max(x[j] * y[i], 0)";
  kernel.layout = "x (cols), y (rows), z (rows, cols)";
  kernel.sizes = {Size::rows, Size::cols};
  kernel.bench = {.rows = 4096, .cols = 4096};
  kernel.notes = {.rows = 90, .cols = 100};
  kernel.inputs = [](const Problem& p) { return TensorSpecs{{"x", {p.cols}, p.dtype}, {"y", {p.rows}, p.dtype}}; };
  kernel.outputs = [](const Problem& p) { return TensorSpecs{{"z", {p.rows, p.cols}, p.dtype}}; };
  kernel.flops = [](const Problem& p) { return 2.0 * static_cast<double>(p.rows * p.cols); };
  kernel.reference = [](const Problem& p, const HostTensors& in, int, std::int64_t i) {
    return std::max(in[0][i % p.cols] * in[1][i / p.cols], 0.0);
  };
  return kernel;
}
#endif

#if WM_PRIMER_CPU
void run(const Problem& p, const Arguments& a) {
  by_dtype(p.dtype, [&](auto type) {
    using T = decltype(type);
    const T* const x = a.input<T>(0);
    const T* const y = a.input<T>(1);
    T* const z = a.output<T>(0);
    const std::size_t bytes = p.rows * p.cols * sizeof(T);
    const bool past_cache = cpu_tools::exceeds_cache(bytes);
    // Rows that are written together: x is loaded, and widened, once for them.
    constexpr int kMost = 4;
    const std::int64_t together = p.cols % kStreamed<T> == 0 ? kMost : 1;
    for_parts(p.rows, together, static_cast<double>(bytes), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; row += together) {
        const std::int64_t rows = end - row < together ? end - row : together;
        Vec factors[kMost];
        for (std::int64_t r = 0; r < kMost; ++r) factors[r] = broadcast(to_float(y[row + (r < rows ? r : 0)]));
        write_rows<kMost>(z + row * p.cols, rows, p.cols, p.cols, past_cache,
                          [&](auto elements, Vec(&v)[kMost]) WM_INLINE_LAMBDA {
                            const Vec values = elements.load(x);
                            for (int r = 0; r < kMost; ++r) v[r] = max(values * factors[r], Vec{});
                          });
      }
    });
  });
}
#endif

#if WM_PRIMER_CUDA
constexpr int kThreads = 256;
constexpr int kRows = 4;  // of a block

template <class T, bool kWhole>
__global__ void __launch_bounds__(kThreads) kernel(const T* x, const T* y, T* z, std::int64_t rows, std::int64_t cols) {
  const std::int64_t col = (blockIdx.x * std::int64_t{kThreads} + threadIdx.x) * kPack<T>;
  if (col >= cols) return;
  float of_x[kPack<T>];
  unpack<T>(load_pack<T, kWhole>(x + col, cols - col), of_x);
  for (std::int64_t first = blockIdx.y * std::int64_t{kRows}; first < rows; first += gridDim.y * std::int64_t{kRows}) {
    const std::int64_t last = min(first + kRows, rows);
#pragma unroll 4
    for (std::int64_t row = first; row < last; ++row) {
      const float factor = to_float(y[row]);
      float values[kPack<T>];
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) values[i] = fmaxf(of_x[i] * factor, 0.0f);
      store_pack<T, kWhole>(z + row * cols + col, cols - col, values);
    }
  }
}

void run(const Problem& p, const Arguments& a, StreamView stream) {
  by_dtype_and_rows(p, [&](auto type, auto whole) {
    using T = typename decltype(type)::type;
    const dim3 blocks(grid_x(ceil_div(p.cols, kThreads * kPack<T>)), grid_yz(ceil_div(p.rows, kRows)));
    kernel<T, whole()>
        <<<blocks, kThreads, 0, handle(stream)>>>(a.input<T>(0), a.input<T>(1), a.output<T>(0), p.rows, p.cols);
    check_launch();
  });
}
#endif

}  // namespace warpmeter::primer::outer_mul_relu::WM_PRIMER_PART
