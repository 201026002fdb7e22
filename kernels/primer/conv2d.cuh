// conv2d: z[b,i,j] = sum over di, dj of w[di,dj] * x[b,i+di,j+dj], x being 0 beyond its ends: the notes' puzzle 10.
//
//   x, z   (batch, rows, cols), w (kernel_size, kernel_size), fp32, bf16 or fp16; summed in fp32
//   grid   x: blocks of 32 pieces of 16 bytes along the columns; y: blocks of 16 rows, four to each of four warps; z:
//          batch. A thread has its piece of each row and computes as many results in four rows; what it needs to the
//          right other threads lend it. Weights are in registers: kernels wider than 5 are done in parts of 8 x 8
//   bound  memory for small kernels: x is read once (and a little more, from L2), z written once
#include "kernels/primer/kernel_file.hpp"

#if WM_PRIMER_CPU
#include "kernels/primer/detail/cpu_conv2d.hpp"
#endif

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
    auto* const w = static_cast<float*>(a.workspace);
    for (std::int64_t i = 0; i < p.kernel_size * p.kernel_size; ++i) w[i] = to_float(a.input<T>(1)[i]);
    const std::size_t bytes = 2 * p.batch * p.rows * p.cols * sizeof(T);
    const bool past_cache = cpu_tools::exceeds_cache(bytes);
    const std::int64_t blocks = (p.rows + kRowsAtOnce - 1) / kRowsAtOnce;  // of a picture
    for_parts(p.batch * blocks, 1, static_cast<double>(bytes), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t block = begin; block < end; ++block) {
        const std::int64_t row = block % blocks * kRowsAtOnce, at = (block / blocks * p.rows + row) * p.cols;
        convolve(p, a.input<T>(0) + at, w, a.output<T>(0) + at, p.rows - row, past_cache);
      }
    });
  });
}
#endif

#if WM_PRIMER_CUDA
constexpr int kWarps = 4, kRows = 4, kTileRows = kWarps * kRows;  // rows of a warp and of a block

/// The results of four rows of a picture from (row, col) on, col the thread's own; x, z: the picture.
template <class T, int kW, bool kWhole>
__device__ __forceinline__ void convolve(const T* x, const T* w, T* z, std::int64_t row, std::int64_t col,
                                         std::int64_t rows, std::int64_t cols, int size) {
  constexpr int kLines = kRows + kW - 1, kPerWord = 4 / sizeof(T), kLent = (kW - 1 + kPerWord - 1) / kPerWord;
  const int lane = threadIdx.x % 32;
  float sums[kRows][kPack<T>] = {};
  for (int first_i = 0; first_i < size; first_i += kW) {
    for (int first_j = 0; first_j < size; first_j += kW) {
      const auto load = [&](std::int64_t line, std::int64_t from) {
        return load_pack<T, kWhole>(x + line * cols + from, line < rows ? cols - from : 0);
      };
      const std::int64_t top = row + first_i, left = col + first_j;
      uint4 raw[kLines], behind{};
#pragma unroll
      for (int i = 0; i < kLines; ++i) raw[i] = load(top + i, left);
      // Thread i has the piece of line i behind the warp's, thread kLines + i the one behind that.
      if (lane < (kLent > 4 ? 2 : 1) * kLines)
        behind = load(top + lane % kLines, left + (32 - lane + lane / kLines) * kPack<T>);
      float weights[kW][kW];
#pragma unroll
      for (int at = 0; at < kW * kW; ++at) {
        const int i = first_i + at / kW, j = first_j + at % kW;
        weights[at / kW][at % kW] = i < size && j < size ? to_float(w[i * std::int64_t{size} + j]) : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < kLines; ++i) {  // serves each row of results that it is within kW of
        uint4 pieces[3] = {raw[i]};
        for (int n = 0; n < kLent; ++n) {
          (&pieces[1 + n / 4].x)[n % 4] = word_to_the_right(n, raw[i], behind, i, kLines + i);
        }
        float line[3][kPack<T>];
        for (int n = 0; n < 3; ++n) unpack<T>(pieces[n], line[n]);
#pragma unroll
        for (int at = 0; at < kRows * kW * kPack<T>; ++at) {
          const int result = at / (kW * kPack<T>), j = at / kPack<T> % kW, k = at % kPack<T>;
          if (i >= result && i < result + kW)
            sums[result][k] += weights[i - result][j] * line[(k + j) / kPack<T>][(k + j) % kPack<T>];
        }
      }
    }
  }
  for (int i = 0; i < kRows; ++i) {
    store_pack<T, kWhole>(z + (row + i) * cols + col, row + i < rows ? cols - col : 0, sums[i]);
  }
}

template <class T, int kW, bool kWhole>
__global__ void __launch_bounds__(32 * kWarps, 20 / kW)
    kernel(const T* x, const T* w, T* z, std::int64_t batch, std::int64_t rows, std::int64_t cols, int size) {
  const std::int64_t col = (blockIdx.x * std::int64_t{32} + threadIdx.x % 32) * kPack<T>;
  for (std::int64_t of = blockIdx.z; of < batch; of += gridDim.z)
    for (std::int64_t first = blockIdx.y; first * kTileRows < rows; first += gridDim.y)
      convolve<T, kW, kWhole>(x + of * rows * cols, w, z + of * rows * cols,
                              first * kTileRows + threadIdx.x / 32 * kRows, col, rows, cols, size);
}

void run(const Problem& p, const Arguments& a, StreamView stream) {
  by_dtype_and_rows(p, [&](auto type, auto whole) {
    using T = typename decltype(type)::type;
    const auto launch = [&](auto of_width) {
      const dim3 blocks(grid_x(ceil_div(p.cols, 32 * kPack<T>)), grid_yz(ceil_div(p.rows, kTileRows)),
                        grid_yz(p.batch));
      of_width<<<blocks, 32 * kWarps, 0, handle(stream)>>>(a.input<T>(0), a.input<T>(1), a.output<T>(0), p.batch,
                                                           p.rows, p.cols, static_cast<int>(p.kernel_size));
      check_launch();
    };
    if (p.kernel_size <= 3) return launch(kernel<T, 3, whole()>);
    if (p.kernel_size <= 5) return launch(kernel<T, 5, whole()>);
    launch(kernel<T, 8, whole()>);
  });
}
#endif

}  // namespace warpmeter::primer::conv2d::WM_PRIMER_PART
