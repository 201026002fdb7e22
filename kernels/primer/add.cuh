// add: y[i,j] = x[i,j] + 10, the notes' puzzles 1 and 2.
//
//   x, y   (rows, cols), fp32, bf16 or fp16; added in fp32
//   grid   a block for every 128 x 2 pieces of 16 bytes of the whole array; the last piece may be cut short
//   bound  memory: each byte is read once and written once, one addition for eight bytes
#include "kernels/primer/kernel_file.hpp"

namespace warpmeter::primer::add::WM_PRIMER_PART {

constexpr float kConstant = 10.0f;

#if WM_PRIMER_DESCRIBES
Kernel describe() {
  Kernel kernel;
  kernel.formula = "y[i,j] = x[i,j] + 10";
  kernel.layout = "x, y (rows, cols)";
  kernel.sizes = {Size::rows, Size::cols};
  kernel.bench = {.rows = 4096, .cols = 4096};
  kernel.notes = {.rows = 1, .cols = 200};
  kernel.inputs = [](const Problem& p) { return TensorSpecs{{"x", {p.rows, p.cols}, p.dtype}}; };
  kernel.outputs = [](const Problem& p) { return TensorSpecs{{"y", {p.rows, p.cols}, p.dtype}}; };
  kernel.flops = [](const Problem& p) { return static_cast<double>(p.rows * p.cols); };
  kernel.reference = [](const Problem&, const HostTensors& in, int, std::int64_t i) { return in[0][i] + kConstant; };
  return kernel;
}
#endif

#if WM_PRIMER_CPU
void run(const Problem& p, const Arguments& a) {
  by_dtype(p.dtype, [&](auto type) {
    using T = decltype(type);
    const T* const x = a.input<T>(0);
    T* const y = a.output<T>(0);
    const std::int64_t n = p.rows * p.cols;
    const std::size_t bytes = 2 * n * sizeof(T);
    const bool past_cache = cpu_tools::exceeds_cache(bytes);
    for_parts(n, 64, static_cast<double>(bytes), [&](std::int64_t begin, std::int64_t end) {
      write_row(y + begin, end - begin, past_cache,
                [&](auto elements) WM_INLINE_LAMBDA { return elements.load(x + begin) + kConstant; });
    });
  });
}
#endif

#if WM_PRIMER_CUDA
constexpr int kThreads = 128;
constexpr int kUnroll = 2;  // loads that a thread has under way

template <class T>
__global__ void __launch_bounds__(kThreads) kernel(const T* x, T* y, std::int64_t n) {
  constexpr std::int64_t kTile = kThreads * kUnroll * kPack<T>;
  for (std::int64_t tile = blockIdx.x * kTile; tile < n; tile += gridDim.x * kTile) {
    const std::int64_t first = tile + threadIdx.x * kPack<T>;
    uint4 raw[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const std::int64_t i = first + u * kThreads * kPack<T>;
      raw[u] = load_pack(x + i, n - i);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const std::int64_t i = first + u * kThreads * kPack<T>;
      float values[kPack<T>];
      unpack<T>(raw[u], values);
#pragma unroll
      for (float& value : values) value += kConstant;
      store_pack(y + i, n - i, values);
    }
  }
}

void run(const Problem& p, const Arguments& a, StreamView stream) {
  by_dtype(p.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const std::int64_t n = p.rows * p.cols;
    const unsigned blocks = grid_x(ceil_div(n, kThreads * kUnroll * kPack<T>));
    kernel<T><<<blocks, kThreads, 0, handle(stream)>>>(a.input<T>(0), a.output<T>(0), n);
    check_launch();
  });
}
#endif

}  // namespace warpmeter::primer::add::WM_PRIMER_PART
