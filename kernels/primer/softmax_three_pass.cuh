// softmax_three_pass: the softmax of each row as it is written down, the notes' puzzle 8 in its plain form.
//
//   x, y   (rows, cols), fp32, bf16 or fp16; computed in fp32
//   grid   a team of threads for each row: a warp (4 rows a block) or a block of up to 1024 threads, about one for each
//          four pieces of 16 bytes, so that the rows under way on a multiprocessor fit in its L1; beyond 64 KiB a block
//          a multiprocessor, which goes through rows
//   passes 1: the maximum, 2: the sum of the exponentials, 3: the results. Each reads the row again and hopes for the
//          cache; the second runs from the row's end, where the first has been last, and the third lets go of what it
//          has read, but where few rows fit. On the CPU, where exponentials are
//          what takes time, the third reads those of the second
//   bound  memory: at best one read and one write, here up to three reads
#include "kernels/primer/kernel_file.hpp"

#if WM_PRIMER_DESCRIBES
#include "kernels/primer/detail/cpu_softmax_workspace.hpp"
#include "kernels/primer/detail/softmax.hpp"
#elif WM_PRIMER_CPU
#include "kernels/primer/detail/cpu_softmax.hpp"
#endif

namespace warpmeter::primer::softmax_three_pass::WM_PRIMER_PART {

constexpr float kLog2e = 1.44269504f;  // exp(x) = 2^(x * log2(e)), and 2^x is what the hardware has

#if WM_PRIMER_DESCRIBES
Kernel describe() {
  Kernel kernel = softmax_kernel();
  kernel.workspace_bytes = [](const Problem& p, Device d) {
    return cpu_floats(d, num_threads() * cpu_tools::kept_floats(p.cols));
  };
  return kernel;
}
#endif

#if WM_PRIMER_CPU
void run(const Problem& p, const Arguments& a) {
  by_dtype(p.dtype, [&](auto type) {
    using T = decltype(type);
    const std::size_t bytes = 2 * p.rows * p.cols * sizeof(T);
    const bool past_cache = cpu_tools::exceeds_cache(bytes);
    for_parts(p.rows, 1, static_cast<double>(bytes), [&](std::int64_t begin, std::int64_t end, int worker) {
      // What the second pass leaves the third, which runs with the next row's second.
      float* const terms = static_cast<float*>(a.workspace) + worker * cpu_tools::kept_floats(p.cols);
      RowBefore<T> before{nullptr, 0.0f, false};
      for (std::int64_t row = begin; row < end; ++row) {
        const T* const x = a.input<T>(0) + row * p.cols;
        const Range range = range_of_row(x, p.cols);
        const float sum = reduce_add(raise(x, terms, p.cols, range.most, range.least, x + p.cols, before));
        before = {a.output<T>(0) + row * p.cols, 1.0f / sum, past_cache};
      }
      write_row_before(before, terms, p.cols);
    });
  });
}
#endif

#if WM_PRIMER_CUDA
constexpr int kRowsOfWarps = 4;  // of a block whose warps have a row each

template <class T, int kTeam, bool kWhole>
__global__ void __launch_bounds__(kTeam == 32 ? 32 * kRowsOfWarps : kTeam)
    kernel(const T* x, T* y, std::int64_t rows, std::int64_t cols) {
  const int teams = blockDim.x / kTeam;
  constexpr int kStep = kTeam * kPack<T>;
  const std::int64_t first = threadIdx.x % kTeam * kPack<T>;
  for (std::int64_t row = blockIdx.x * std::int64_t{teams} + threadIdx.x / kTeam; row < rows;
       row += gridDim.x * std::int64_t{teams}) {
    const T* const of_row = x + row * cols;
    float most = -INFINITY;
#pragma unroll 4
    for (std::int64_t col = first; col < cols; col += kStep) {
      most = fmaxf(most, largest<T>(load_pack<T, kWhole>(of_row + col, cols - col, -INFINITY)));
    }
    most = team_reduce<kTeam>(most, Max());
    const auto sum_and_write = [&](auto&& term) {
      float values[kPack<T>], sum = 0.0f;
#pragma unroll 4
      for (std::int64_t col = (cols - 1) / kStep * kStep + first; col >= 0; col -= kStep) {
        unpack<T>(load_pack<T, kWhole>(of_row + col, cols - col, -INFINITY), values);
#pragma unroll
        for (const float value : values) sum += term(value);
      }
      const float inverse = 1.0f / team_reduce<kTeam>(sum, Add());
#pragma unroll 4
      for (std::int64_t col = first; col < cols; col += kStep) {
        constexpr Evict kEvict = kTeam <= 512 ? Evict::first : Evict::normal;
        unpack<T>(load_pack<T, kWhole, kEvict>(of_row + col, cols - col), values);
#pragma unroll
        for (float& value : values) value = term(value) * inverse;
        store_pack<T, kWhole>(y + row * cols + col, cols - col, values);
      }
    };
    // One fused product instead of a difference and a product: what rounding adds to `shift` is a factor of all terms,
    // and cancels, but would be too large a factor where scores are.
    if (fabsf(most) < 1e6f) {
      sum_and_write([shift = -most * kLog2e](float score) { return ptx::exp2_approx(fmaf(score, kLog2e, shift)); });
    } else {
      sum_and_write([most](float score) { return ptx::exp2_approx((score - most) * kLog2e); });
    }
  }
}

void run(const Problem& p, const Arguments& a, StreamView stream) {
  by_dtype_and_rows(p, [&](auto type, auto whole) {
    using T = typename decltype(type)::type;
    const std::int64_t pieces = ceil_div(p.cols, kPack<T>);
    const auto launch = [&](auto team) {
      constexpr int kThreads = team == 32 ? 32 * kRowsOfWarps : team();
      std::int64_t blocks = ceil_div(p.rows * team, kThreads);
      if (pieces > 4096) blocks = std::min<std::int64_t>(blocks, multiprocessors(stream));
      kernel<T, team(), whole()>
          <<<grid_x(blocks), kThreads, 0, handle(stream)>>>(a.input<T>(0), a.output<T>(0), p.rows, p.cols);
      check_launch();
    };
    if (pieces <= 4 * 32) return launch(Int<32>());
    if (pieces <= 4 * 128) return launch(Int<128>());
    if (pieces <= 4 * 256) return launch(Int<256>());
    pieces <= 4 * 512 ? launch(Int<512>()) : launch(Int<1024>());
  });
}
#endif

}  // namespace warpmeter::primer::softmax_three_pass::WM_PRIMER_PART
