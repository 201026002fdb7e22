// row_sum: y[i] = sum over j of x[i,j], the notes' puzzle 7.
//
//   x (rows, cols), y (rows), fp32, bf16 or fp16; summed in fp32, in an order that is always the same
//   grid   a team of threads for each row: a warp (4 rows a block) or a block of up to 512, about one for two pieces of
//          16 bytes. A thread has two pieces under way, four in long rows
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
        Vec sums[4] = {};  // so that adding never waits for adding
        std::int64_t i = 0;
        for (; i + 4 * kWidth <= p.cols; i += 4 * kWidth) {
          for (int half = 0; half < 2; ++half) {
            Vec v[2];
            load_two(x + i + half * 2 * kWidth, v);
            sums[2 * half] = sums[2 * half] + v[0];
            sums[2 * half + 1] = sums[2 * half + 1] + v[1];
          }
        }
        for (; i < p.cols; i += kWidth) sums[0] = sums[0] + load_some(x + i, p.cols - i);
        a.output<T>(0)[row] = from_float<T>(reduce_add((sums[0] + sums[1]) + (sums[2] + sums[3])));
      }
    });
  });
}
#endif

#if WM_PRIMER_CUDA
constexpr int kRowsOfWarps = 4;  // of a block whose warps have a row each

/// kUnroll: loads that a thread has under way.
template <class T, int kTeam, int kUnroll, bool kWhole>
__global__ void __launch_bounds__(kTeam == 32 ? 32 * kRowsOfWarps : kTeam)
    kernel(const T* x, T* y, std::int64_t rows, std::int64_t cols) {
  const int teams = blockDim.x / kTeam, thread = threadIdx.x % kTeam;
  for (std::int64_t row = blockIdx.x * std::int64_t{teams} + threadIdx.x / kTeam; row < rows;
       row += gridDim.x * std::int64_t{teams}) {
    const T* const of_row = x + row * cols;
    CompensatedSum sum;
    for (std::int64_t first = thread * kPack<T>; first < cols; first += kTeam * kUnroll * kPack<T>) {
      uint4 raw[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const std::int64_t col = first + u * kTeam * kPack<T>;
        raw[u] = load_pack<T, kWhole, Evict::kept_out>(of_row + col, cols - col);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        float values[kPack<T>];
        unpack<T>(raw[u], values);
        float of_piece = 0.0f;
#pragma unroll
        for (const float value : values) of_piece += value;
        sum.add(of_piece);
      }
    }
    const float total = team_reduce<kTeam>(sum.sum, Add());
    if (thread == 0) y[row] = from_float<T>(total);
  }
}

void run(const Problem& p, const Arguments& a, StreamView stream) {
  by_dtype_and_rows(p, [&](auto type, auto whole) {
    using T = typename decltype(type)::type;
    const auto launch = [&](auto team, auto unroll) {
      constexpr int kThreads = team == 32 ? 32 * kRowsOfWarps : team();
      kernel<T, team(), unroll(), whole()><<<grid_x(ceil_div(p.rows * team, kThreads)), kThreads, 0, handle(stream)>>>(
          a.input<T>(0), a.output<T>(0), p.rows, p.cols);
      check_launch();
    };
    const std::int64_t pieces = ceil_div(p.cols, kPack<T>);
    if (pieces <= 2 * 32) return launch(Int<32>(), Int<2>());
    if (pieces <= 2 * 128) return launch(Int<128>(), Int<2>());
    if (pieces <= 2 * 256) return launch(Int<256>(), Int<2>());
    pieces < 4 * 512 ? launch(Int<512>(), Int<2>()) : launch(Int<512>(), Int<4>());
  });
}
#endif

}  // namespace warpmeter::primer::row_sum::WM_PRIMER_PART
