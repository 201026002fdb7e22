// conv2d: z[b,i,j] = sum over di, dj of w[di,dj] * x[b,i+di,j+dj], x being 0 beyond its ends: the notes' puzzle 10.
//
//   x, z   (batch, rows, cols), w (kernel_size, kernel_size), fp32, bf16 or fp16; summed in fp32
//   grid   a block of 256 threads for each tile of 32 x 128 results. Its part of x, larger by the kernel's size, goes
//          to shared memory; a thread computes 4 x 4 results. Weights stay in registers: kernels other than 3, 4, 5
//          and 7 wide are done in pieces of 7 x 7
//   bound  memory for small kernels: x is read once (and a little more, from L2), z written once
#include "kernels/primer/kernel_file.hpp"

namespace warpmeter::primer::conv2d::WM_PRIMER_PART {

#if WM_PRIMER_DESCRIBES
Kernel describe() {
  Kernel kernel;
  kernel.formula = "z[b,i,j] = sum_di,dj w[di,dj] * x[b,i+di,j+dj], 0 beyond the ends";
  kernel.layout = "x, z (batch, rows, cols), w (kernel_size, kernel_size)";
  kernel.sizes = {Size::batch, Size::rows, Size::cols, Size::kernel_size};
  kernel.bench = {.rows = 4096, .cols = 4096, .kernel_size = 3};
  kernel.notes = {.batch = 4, .rows = 8, .cols = 8, .kernel_size = 4};
  kernel.inputs = [](const Problem& p) {
    return TensorSpecs{{"x", {p.batch, p.rows, p.cols}, p.dtype}, {"w", {p.kernel_size, p.kernel_size}, p.dtype}};
  };
  kernel.outputs = [](const Problem& p) { return TensorSpecs{{"z", {p.batch, p.rows, p.cols}, p.dtype}}; };
  kernel.flops = [](const Problem& p) {
    return 2.0 * static_cast<double>(p.batch * p.rows * p.cols) * static_cast<double>(p.kernel_size * p.kernel_size);
  };
  kernel.reference = [](const Problem& p, const HostTensors& in, int, std::int64_t at) {
    const std::int64_t row = at / p.cols % p.rows, col = at % p.cols;
    double sum = 0;
    for (std::int64_t di = 0; di < p.kernel_size && row + di < p.rows; ++di)
      for (std::int64_t dj = 0; dj < p.kernel_size && col + dj < p.cols; ++dj)
        sum += in[1][di * p.kernel_size + dj] * in[0][at + di * p.cols + dj];
    return sum;
  };
  kernel.reference_cost = [](const Problem& p) { return static_cast<double>(p.kernel_size * p.kernel_size); };
  kernel.workspace_bytes = [](const Problem& p, Device d) { return cpu_floats(d, p.kernel_size * p.kernel_size); };
  kernel.invalid = [](const Problem& p) { return std::string(p.kernel_size > 4096 ? "kernel_size above 4096" : ""); };
  return kernel;
}
#endif

#if WM_PRIMER_CPU
void run(const Problem& p, const Arguments& a) {
  by_dtype(p.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t size = p.kernel_size;
    auto* const w = static_cast<float*>(a.workspace);  // the weights as floats
    for (std::int64_t i = 0; i < size * size; ++i) w[i] = to_float(a.input<T>(1)[i]);
    const std::size_t bytes = 2 * p.batch * p.rows * p.cols * sizeof(T);
    for_parts(p.batch * p.rows, 1, static_cast<double>(bytes), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* const x = a.input<T>(0) + row * p.cols;
        const std::int64_t below = p.rows - row % p.rows;  // rows of x that are there, this one included
        write_row(a.output<T>(0) + row * p.cols, p.cols, cpu_tools::exceeds_cache(bytes),
                  [&](std::int64_t i, std::int64_t) {
                    const bool inside = i + size + kWidth - 1 <= p.cols;  // every load is whole
                    Vec sum{};
                    for (std::int64_t di = 0; di < size && di < below; ++di) {
                      const T* const from = x + di * p.cols + i;
                      for (std::int64_t dj = 0; dj < size && (inside || i + dj < p.cols); ++dj) {
                        const Vec values = inside ? load(from + dj) : load_some(from + dj, p.cols - i - dj);
                        sum = fma(values, broadcast(w[di * size + dj]), sum);
                      }
                    }
                    return sum;
                  });
      }
    });
  });
}
#endif

#if WM_PRIMER_CUDA
constexpr int kThreads = 256, kTileRows = 32, kTileCols = 128;
constexpr int kPitch = kTileCols + 8;  // floats of a row of the tile in shared memory, what a kernel 7 wide reads

/// Sums over the part of the kernel that begins at (first_i, first_j), kW wide, into the thread's 4 x 4 results. `rows`
/// and `cols` are left of the picture from x on, whose rows are `row_stride` elements apart.
template <class T, int kW>
__device__ __forceinline__ void add_part(const T* x, const T* w, float* tile, float (&sums)[4][4], std::int64_t rows,
                                         std::int64_t cols, std::int64_t row_stride, int size, int first_i,
                                         int first_j) {
  load_window<kThreads, kTileRows + kW - 1, kPitch>(x + first_i * row_stride + first_j, rows - first_i, cols - first_j,
                                                    row_stride, tile);
  float weights[kW][kW];
#pragma unroll
  for (int at = 0; at < kW * kW; ++at) {
    const int i = first_i + at / kW, j = first_j + at % kW;
    weights[at / kW][at % kW] = i < size && j < size ? to_float(w[i * std::int64_t{size} + j]) : 0.0f;
  }
  const float* const window = tile + threadIdx.x / 32 * 4 * kPitch + threadIdx.x % 32 * 4;
#pragma unroll
  for (int i = 0; i < 4 + kW - 1; ++i) {  // a row of the window serves each result row that it is within kW of
    float line[(4 + kW - 1 + 3) / 4 * 4];
#pragma unroll
    for (int j = 0; j < 4 + kW - 1; j += 4) {
      *reinterpret_cast<float4*>(line + j) = *reinterpret_cast<const float4*>(window + i * kPitch + j);
    }
#pragma unroll
    for (int row = 0; row < 4; ++row) {
      if (i < row || i >= row + kW) continue;
#pragma unroll
      for (int j = 0; j < kW; ++j) {
#pragma unroll
        for (int col = 0; col < 4; ++col) sums[row][col] += weights[i - row][j] * line[col + j];
      }
    }
  }
}

template <class T, int kW>
__global__ void __launch_bounds__(kThreads)
    kernel(const T* x, const T* w, T* z, std::int64_t rows, std::int64_t cols, std::int64_t tiles, int size) {
  __shared__ __align__(16) float tile[(kTileRows + kW - 1) * kPitch];
  const std::int64_t across = (cols + kTileCols - 1) / kTileCols, down = (rows + kTileRows - 1) / kTileRows;
  for (std::int64_t index = blockIdx.x; index < tiles; index += gridDim.x) {
    const std::int64_t col = index % across * kTileCols, row = index / across % down * kTileRows;
    const std::int64_t corner = index / across / down * rows * cols + row * cols + col;
    float sums[4][4] = {};
    for (int i = 0; i < size; i += kW)
      for (int j = 0; j < size; j += kW)
        add_part<T, kW>(x + corner, w, tile, sums, rows - row, cols - col, cols, size, i, j);
    const int across_tile = threadIdx.x % 32 * 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int down_tile = threadIdx.x / 32 * 4 + i;
      const std::int64_t left = row + down_tile < rows ? cols - col - across_tile : 0;
      store_four(z + corner + down_tile * cols + across_tile, left, sums[i]);
    }
  }
}

void run(const Problem& p, const Arguments& a, StreamView stream) {
  by_dtype(p.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const std::int64_t tiles = p.batch * ceil_div(p.rows, kTileRows) * ceil_div(p.cols, kTileCols);
    const auto launch = [&](auto of_width) {
      of_width<<<grid_x(tiles), kThreads, 0, handle(stream)>>>(a.input<T>(0), a.input<T>(1), a.output<T>(0), p.rows,
                                                               p.cols, tiles, static_cast<int>(p.kernel_size));
      check_launch();
    };
    if (p.kernel_size == 3) return launch(kernel<T, 3>);
    if (p.kernel_size == 4) return launch(kernel<T, 4>);
    if (p.kernel_size == 5) return launch(kernel<T, 5>);
    launch(kernel<T, 7>);
  });
}
#endif

}  // namespace warpmeter::primer::conv2d::WM_PRIMER_PART
