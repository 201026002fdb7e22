// weighted_sum_backward: dx[i,j] = w[j] * g[i] and dw[j] = sum over i of g[i] * x[i,j], the gradients of the notes'
// weighted sum for the gradient g of its result.
//
//   x, dx (rows, cols), w, dw (cols), g (rows), fp32, bf16 or fp16; summed in fp32
//   grid   x: blocks of up to 512 pieces of 16 bytes along the columns; y: parts of the rows, as many as give each
//          multiprocessor 512 threads. Eight rows go to the first part, the next eight to the second, and so on round
//          and round: what is under way lies together. A thread leaves a partial sum of dw in the workspace (parts,
//          cols), and cuda/add_parts.cuh adds the parts up: the same order, so the same bits, on every run
//   bound  memory: x is read once, dx is written once
#include "kernels/primer/kernel_file.hpp"

#if WM_PRIMER_CPU
#include "kernels/primer/detail/cpu_weighted_sum.hpp"
#endif

namespace warpmeter::primer::weighted_sum_backward::WM_PRIMER_PART {

constexpr std::int64_t kMostParts = 1024;  // of the rows: what the workspace has room for

#if WM_PRIMER_DESCRIBES
Kernel describe() {
  Kernel kernel;
  kernel.formula = "dx[i,j] = w[j] * g[i], dw[j] = sum_i g[i] * x[i,j]";
  kernel.layout = "x, dx (rows, cols), w, dw (cols), g (rows)";
  kernel.pass = "bwd";
  kernel.sizes = {Size::rows, Size::cols};
  kernel.bench = {.rows = 4096, .cols = 4096};
  kernel.notes = {.rows = 90, .cols = 100};
  kernel.inputs = [](const Problem& p) {
    return TensorSpecs{{"x", {p.rows, p.cols}, p.dtype}, {"w", {p.cols}, p.dtype}, {"g", {p.rows}, p.dtype}};
  };
  kernel.outputs = [](const Problem& p) {
    return TensorSpecs{{"dx", {p.rows, p.cols}, p.dtype}, {"dw", {p.cols}, p.dtype}};
  };
  kernel.flops = [](const Problem& p) { return 3.0 * static_cast<double>(p.rows * p.cols); };
  kernel.reference = [](const Problem& p, const HostTensors& in, int output, std::int64_t i) {
    if (output == 0) return in[1][i % p.cols] * in[2][i / p.cols];
    double sum = 0;
    for (std::int64_t row = 0; row < p.rows; ++row) sum += in[2][row] * in[0][row * p.cols + i];
    return sum;
  };
  kernel.reference_cost = [](const Problem& p) { return static_cast<double>(p.rows) / 8; };
  kernel.workspace_bytes = [](const Problem& p, Device) {
    return static_cast<std::size_t>(std::min(p.rows, kMostParts) * p.cols) * sizeof(float);
  };
  return kernel;
}
#endif

#if WM_PRIMER_CPU
/// Rows in the parts of the first stage: a multiple of four, and no more parts than kMostParts.
std::int64_t rows_of_part(std::int64_t rows) {
  const std::int64_t parts = 4 * num_threads() < kMostParts ? 4 * num_threads() : kMostParts;
  return ((rows + parts - 1) / parts + 3) / 4 * 4;
}

void run(const Problem& p, const Arguments& a) {
  by_dtype(p.dtype, [&](auto type) {
    using T = decltype(type);
    const T *const x = a.input<T>(0), *const w = a.input<T>(1), *const g = a.input<T>(2);
    auto* const partial = static_cast<float*>(a.workspace);
    const std::size_t bytes = 2 * p.rows * p.cols * sizeof(T);
    const bool past_cache = cpu_tools::exceeds_cache(bytes);
    const std::int64_t part_rows = rows_of_part(p.rows), parts = (p.rows + part_rows - 1) / part_rows;
    for_parts(parts, 1, static_cast<double>(bytes), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin * part_rows; row < end * part_rows && row < p.rows; row += kGradientRows) {
        const std::int64_t rows = p.rows - row < kGradientRows ? p.rows - row : kGradientRows, at = row * p.cols;
        const GradientRows<T> gradients(x + at, p.cols, w, g + row, rows, partial + row / part_rows * p.cols,
                                        row % part_rows == 0);
        write_rows<kGradientRows>(a.output<T>(0) + at, rows, p.cols, p.cols, past_cache, gradients);
      }
    });
    for_parts(p.cols, 64, static_cast<double>(parts * p.cols * sizeof(float)),
              [&](std::int64_t begin, std::int64_t end) {
                write_row(a.output<T>(1) + begin, end - begin, false, [&](Run run) {
                  Vec sum{};
                  for (std::int64_t part = 0; part < parts; ++part)
                    sum = sum + run.load(partial + part * p.cols + begin);
                  return sum;
                });
              });
  });
}
#endif

#if WM_PRIMER_CUDA
constexpr int kThreads = 512;  // of a block at most, and of a multiprocessor: few parts to add up
constexpr int kUnroll = 8;     // rows that a thread has under way

template <class T, bool kWhole>
__global__ void __launch_bounds__(kThreads)
    rows_kernel(const T* x, const T* w, const T* g, T* dx, float* partial, std::int64_t rows, std::int64_t cols) {
  const std::int64_t col = (blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x) * kPack<T>;
  let_second_stage_start();
  if (col >= cols) return;
  float weights[kPack<T>], sums[kPack<T>] = {};
  unpack<T>(load_pack<T, kWhole>(w + col, cols - col), weights);
  for (std::int64_t first = blockIdx.y * std::int64_t{kUnroll}; first < rows; first += gridDim.y * kUnroll) {
    uint4 raw[kUnroll];
    float factors[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const bool there = first + u < rows;
      raw[u] = load_pack<T, kWhole>(x + (first + u) * cols + col, there ? cols - col : 0);
      factors[u] = there ? to_float(g[first + u]) : 0.0f;
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (first + u >= rows) break;
      float of_x[kPack<T>], values[kPack<T>];
      unpack<T>(raw[u], of_x);
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) {
        sums[i] += factors[u] * of_x[i];
        values[i] = weights[i] * factors[u];
      }
      store_pack<T, kWhole>(dx + (first + u) * cols + col, cols - col, values);
    }
  }
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i)
    if (col + i < cols) partial[blockIdx.y * cols + col + i] = sums[i];
}

void run(const Problem& p, const Arguments& a, StreamView stream) {
  by_dtype_and_rows(p, [&](auto type, auto whole) {
    using T = typename decltype(type)::type;
    auto* const partial = static_cast<float*>(a.workspace);
    const std::int64_t pieces = ceil_div(p.cols, kPack<T>);
    const auto threads = static_cast<unsigned>(std::min<std::int64_t>(ceil_div(pieces, 32) * 32, kThreads));
    const std::int64_t across = ceil_div(pieces, threads), blocks = multiprocessors(stream) * (kThreads / threads);
    const std::int64_t wanted = std::clamp<std::int64_t>(blocks / across, 1, kMostParts);
    const std::int64_t turns = ceil_div(p.rows, kUnroll);
    const auto parts = static_cast<unsigned>(ceil_div(turns, ceil_div(turns, wanted)));  // all have as many, about
    rows_kernel<T, whole()><<<dim3(grid_x(across), parts), threads, 0, handle(stream)>>>(
        a.input<T>(0), a.input<T>(1), a.input<T>(2), a.output<T>(0), partial, p.rows, p.cols);
    check_launch();
    add_parts(partial, a.output<T>(1), static_cast<int>(parts), p.cols, stream);
  });
}
#endif

}  // namespace warpmeter::primer::weighted_sum_backward::WM_PRIMER_PART
