// weighted_sum: y[i] = sum over j of w[j] * x[i,j], the notes' weighted sum of a matrix's columns, forward.
//
//   x (rows, cols), w (cols), y (rows), fp32, bf16 or fp16; summed in fp32, in an order that is always the same
//   grid   a team of threads for each row: a warp (4 rows a block) or a block of up to 512, about one for two pieces of
//          16 bytes. A thread has two pieces under way, four in long rows. In 16 bits these have blocks of 256: of four
//          blocks on a multiprocessor three have loads under way while one adds up and the next begins, of two one
//   bound  memory, reading: a multiply-add for each element read; w stays in the cache
#include "kernels/primer/kernel_file.hpp"

namespace warpmeter::primer::weighted_sum::WM_PRIMER_PART {

#if WM_PRIMER_DESCRIBES
Kernel describe() {
  Kernel kernel;
  kernel.formula = "y[i] = sum_j w[j] * x[i,j]";
  kernel.layout = "x (rows, cols), w (cols), y (rows)";
  kernel.sizes = {Size::rows, Size::cols};
  kernel.bench = {.rows = 4096, .cols = 4096};
  kernel.notes = {.rows = 90, .cols = 100};
  kernel.traffic = Traffic::read;
  kernel.inputs = [](const Problem& p) {
    return TensorSpecs{{"x", {p.rows, p.cols}, p.dtype}, {"w", {p.cols}, p.dtype}};
  };
  kernel.outputs = [](const Problem& p) { return TensorSpecs{{"y", {p.rows}, p.dtype}}; };
  kernel.flops = [](const Problem& p) { return 2.0 * static_cast<double>(p.rows * p.cols); };
  kernel.reference = [](const Problem& p, const HostTensors& in, int, std::int64_t row) {
    double sum = 0;
    for (std::int64_t j = 0; j < p.cols; ++j) sum += in[1][j] * in[0][row * p.cols + j];
    return sum;
  };
  kernel.reference_cost = [](const Problem& p) { return static_cast<double>(p.cols); };
  return kernel;
}
#endif

#if WM_PRIMER_CPU
void run(const Problem& p, const Arguments& a) {
  // Rows together: w, which comes from the cache as often, is loaded once for them. As many as registers hold two sums
  // of.
  constexpr std::int64_t kRows = kWidth == 16 ? 8 : 4;
  by_dtype(p.dtype, [&](auto type) {
    using T = decltype(type);
    const T* const w = a.input<T>(1);
    const auto work = static_cast<double>(p.rows * p.cols * sizeof(T));
    for_parts(p.rows, kRows, work, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; row += kRows) {
        const std::int64_t rows = end - row < kRows ? end - row : kRows;
        const T* x[kRows];  // the last row again where there are fewer
        for (std::int64_t r = 0; r < kRows; ++r) x[r] = a.input<T>(0) + (row + (r < rows ? r : rows - 1)) * p.cols;
        Vec sums[kRows][2] = {};
        std::int64_t i = 0;
        for (; i + 2 * kWidth <= p.cols; i += 2 * kWidth) {
          Vec weights[2];
          load_two(w + i, weights);
          for (std::int64_t r = 0; r < kRows; ++r) {
            Vec v[2];
            ask_ahead(x[r] + i);
            load_two(x[r] + i, v);
            for (int half = 0; half < 2; ++half) sums[r][half] = fma(v[half], weights[half], sums[r][half]);
          }
        }
        for (; i < p.cols; i += kWidth) {
          const Vec weights = load_some(w + i, p.cols - i);
          for (std::int64_t r = 0; r < kRows; ++r)
            sums[r][0] = fma(load_some(x[r] + i, p.cols - i), weights, sums[r][0]);
        }
        for (std::int64_t r = 0; r < rows; ++r)
          a.output<T>(0)[row + r] = from_float<T>(reduce_add(sums[r][0] + sums[r][1]));
      }
    });
  });
}
#endif

#if WM_PRIMER_CUDA
constexpr int kRowsOfWarps = 4;  // of a block whose warps have a row each

/// kUnroll: loads that a thread has under way, of x and of w. With half of the threads that fit each has the registers
/// to ask for all of them at once; else ptxas asks for the next where the last one is used up.
template <class T, int kTeam, int kUnroll, bool kWhole>
__global__ void __launch_bounds__(kTeam == 32 ? 32 * kRowsOfWarps : kTeam, kTeam == 32 ? 8 : 1024 / kTeam)
    kernel(const T* x, const T* w, T* y, std::int64_t rows, std::int64_t cols) {
  const int teams = blockDim.x / kTeam, thread = threadIdx.x % kTeam;
  for (std::int64_t row = blockIdx.x * std::int64_t{teams} + threadIdx.x / kTeam; row < rows;
       row += gridDim.x * std::int64_t{teams}) {
    const T* const of_row = x + row * cols;
    CompensatedSum sum;
    for (std::int64_t first = thread * kPack<T>; first < cols; first += kTeam * kUnroll * kPack<T>) {
      uint4 raw[kUnroll], raw_w[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const std::int64_t col = first + u * kTeam * kPack<T>;
        raw[u] = load_pack<T, kWhole, Evict::kept_out>(of_row + col, cols - col);
        raw_w[u] = load_pack<T, kWhole>(w + col, cols - col);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        float values[kPack<T>], weights[kPack<T>], of_piece = 0.0f;
        unpack<T>(raw[u], values);
        unpack<T>(raw_w[u], weights);
#pragma unroll
        for (int i = 0; i < kPack<T>; ++i) of_piece += weights[i] * values[i];
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
          a.input<T>(0), a.input<T>(1), a.output<T>(0), p.rows, p.cols);
      check_launch();
    };
    const std::int64_t pieces = ceil_div(p.cols, kPack<T>);
    if (pieces <= 2 * 32) return launch(Int<32>(), Int<2>());
    if (pieces <= 2 * 128) return launch(Int<128>(), Int<2>());
    if (pieces <= 2 * 256) return launch(Int<256>(), Int<2>());
    constexpr int kLong = sizeof(T) == 2 ? 256 : 512;
    pieces < 4 * kLong ? launch(Int<512>(), Int<2>()) : launch(Int<kLong>(), Int<4>());
  });
}
#endif

}  // namespace warpmeter::primer::weighted_sum::WM_PRIMER_PART
