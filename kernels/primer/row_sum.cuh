// row_sum: y[i] = sum over j of x[i,j], the notes' puzzle 7.
//
//   x (rows, cols), y (rows), fp32, bf16 or fp16; summed in fp32, in an order that is always the same
//   grid   a team of threads for each row: a warp for short rows (8 rows a block), a block of 256 for long ones. A
//          thread has four pieces of 16 bytes under way
//   bound  memory, reading: an addition for each element read
#include "kernels/primer/kernel_file.hpp"

namespace warpmeter::primer::row_sum::WM_PRIMER_PART {

#if WM_PRIMER_DESCRIBES
Kernel describe() {
  Kernel kernel;
  kernel.formula = "y[i] = sum_j x[i,j]";
  kernel.layout = "x (rows, cols), y (rows)";
  kernel.sizes = {Size::rows, Size::cols};
  kernel.bench = {.rows = 4096, .cols = 4096};
  kernel.notes = {.rows = 4, .cols = 200};
  kernel.traffic = Traffic::read;
  kernel.inputs = [](const Problem& p) { return TensorSpecs{{"x", {p.rows, p.cols}, p.dtype}}; };
  kernel.outputs = [](const Problem& p) { return TensorSpecs{{"y", {p.rows}, p.dtype}}; };
  kernel.flops = [](const Problem& p) { return static_cast<double>(p.rows * p.cols); };
  kernel.reference = [](const Problem& p, const HostTensors& in, int, std::int64_t row) {
    double sum = 0;
    for (std::int64_t j = 0; j < p.cols; ++j) sum += in[0][row * p.cols + j];
    return sum;
  };
  kernel.reference_cost = [](const Problem& p) { return static_cast<double>(p.cols); };
  return kernel;
}
#endif

#if WM_PRIMER_CPU
void run(const Problem& p, const Arguments& a) {
  by_dtype(p.dtype, [&](auto type) {
    using T = decltype(type);
    for_parts(p.rows, 1, static_cast<double>(p.rows * p.cols * sizeof(T)), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* const x = a.input<T>(0) + row * p.cols;
        a.output<T>(0)[row] =
            from_float<T>(sum_row(p.cols, [&](std::int64_t i, std::int64_t count) { return load_some(x + i, count); }));
      }
    });
  });
}
#endif

#if WM_PRIMER_CUDA
constexpr int kThreads = 256;
constexpr int kUnroll = 4;  // loads that a thread has under way

template <class T, int kTeam, bool kWhole>
__global__ void __launch_bounds__(kThreads) kernel(const T* x, T* y, std::int64_t rows, std::int64_t cols) {
  constexpr int kTeams = kThreads / kTeam;
  const int thread = threadIdx.x % kTeam;
  for (std::int64_t row = blockIdx.x * std::int64_t{kTeams} + threadIdx.x / kTeam; row < rows;
       row += gridDim.x * std::int64_t{kTeams}) {
    const T* const of_row = x + row * cols;
    float sum = 0.0f;
    for (std::int64_t first = thread * kPack<T>; first < cols; first += kTeam * kUnroll * kPack<T>) {
      uint4 raw[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const std::int64_t col = first + u * kTeam * kPack<T>;
        raw[u] = load_pack<T, Reuse::once, kWhole>(of_row + col, cols - col);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        float values[kPack<T>];
        unpack<T>(raw[u], values);
        float of_piece = 0.0f;
#pragma unroll
        for (const float value : values) of_piece += value;
        sum += of_piece;
      }
    }
    sum = team_reduce<kTeam>(sum, Add());
    if (thread == 0) y[row] = from_float<T>(sum);
  }
}

template <class T, int kTeam, bool kWhole>
void launch(const Problem& p, const Arguments& a, StreamView stream) {
  const unsigned blocks = grid_x(ceil_div(p.rows, kThreads / kTeam));
  kernel<T, kTeam, kWhole><<<blocks, kThreads, 0, handle(stream)>>>(a.input<T>(0), a.output<T>(0), p.rows, p.cols);
  check_launch();
}

void run(const Problem& p, const Arguments& a, StreamView stream) {
  by_dtype_and_rows(p, [&](auto type, auto whole) {
    using T = typename decltype(type)::type;
    // A block that had less than two rounds of loads for each thread would mostly wait for its barriers.
    const bool short_rows = p.cols <= 2 * kThreads * kPack<T>;
    short_rows ? launch<T, 32, whole()>(p, a, stream) : launch<T, kThreads, whole()>(p, a, stream);
  });
}
#endif

}  // namespace warpmeter::primer::row_sum::WM_PRIMER_PART
