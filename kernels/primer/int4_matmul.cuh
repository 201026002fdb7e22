// int4_matmul: z = dequantized(w) y, the notes' puzzle 12: z[i,j] = sum over k of s[i,k/g] * (w[i,k] - o[i,k/g]) *
// y[k,j].
//
//   w      (rows, inner/8) int32: eight weights from 0 to 15 a word along `inner`, lowest bits first
//   s      (rows, groups): a scale for each group of g = group_size weights of a row, groups = inner/g; in y's type
//   o      (rows, groups/8) int32: a group's offset from 0 to 15, eight a word
//   y      (inner, cols), z (rows, cols), fp32, bf16 or fp16; summed in fp32. Quotients are rounded up
//   grid   one column: tiles of 8 or 16 rows, on sm_90 by cuda/int4_gemv_sm90.cuh, elsewhere, with a y too long for
//          it or rows that it can't copy whole by cuda/int4_weights.cuh. sm_90, 16 bits: matmul_sm90 with
//          cuda/int4_sm90.cuh, weights converted in registers. Otherwise cuda/tile_matmul.cuh. All but the last ask for
//          whole steps (256 or 128, 128, 64) in `inner` and g
//   bound  one column: memory, reading half a byte for a multiply-add. Many: compute, as any matrix product
#include <algorithm>

#include "kernels/primer/kernel_file.hpp"

#if WM_PRIMER_CPU
#include "kernels/primer/detail/cpu_int4.hpp"
#include "kernels/primer/detail/cpu_matmul.hpp"
#elif WM_PRIMER_CUDA
#include "kernels/primer/cuda/int4_weights.cuh"
#include "kernels/primer/cuda/tile_matmul.cuh"
#if WARPMETER_SM90A
#include "kernels/primer/cuda/int4_gemv_sm90.cuh"
#include "kernels/primer/cuda/int4_sm90.cuh"
#endif
#else
#include "kernels/primer/detail/cpu_matmul_workspace.hpp"
#endif

namespace warpmeter::primer::int4_matmul::WM_PRIMER_PART {

#if WM_PRIMER_DESCRIBES
std::int64_t groups(const Problem& p) {
  return (p.inner + p.group_size - 1) / p.group_size;
}

Kernel describe() {
  Kernel kernel;
  kernel.formula = "z[i,j] = sum_k s[i,k/g] * (w[i,k] - o[i,k/g]) * y[k,j], w and o in 4 bits, g = group_size";
  kernel.layout = "w (rows, inner/8), s (rows, inner/g), o (rows, inner/g/8), y (inner, cols), z (rows, cols)";
  kernel.sizes = {Size::rows, Size::cols, Size::inner, Size::group_size};
  kernel.bench = {.rows = 4096, .cols = 4096, .inner = 4096, .group_size = 128};
  kernel.notes = {.rows = 32, .cols = 32, .inner = 64, .group_size = 8};
  kernel.traffic = Traffic::read;
  kernel.matrix_product = true;
  kernel.inputs = [](const Problem& p) {
    return TensorSpecs{{"w", {p.rows, (p.inner + 7) / 8}, DType::int32, Fill::bits},
                       {"s", {p.rows, groups(p)}, p.dtype, Fill::positive},
                       {"o", {p.rows, (groups(p) + 7) / 8}, DType::int32, Fill::bits},
                       {"y", {p.inner, p.cols}, p.dtype}};
  };
  kernel.outputs = [](const Problem& p) { return TensorSpecs{{"z", {p.rows, p.cols}, p.dtype}}; };
  kernel.flops = [](const Problem& p) {
    return 2.0 * static_cast<double>(p.rows * p.cols) * static_cast<double>(p.inner);
  };
  kernel.reference = [](const Problem& p, const HostTensors& in, int, std::int64_t at) {
    const std::int64_t row = at / p.cols, col = at % p.cols;
    double sum = 0;
    for (std::int64_t k = 0; k < p.inner; ++k) {
      const std::int64_t group = k / p.group_size;
      const int weight = in[0].nibble(row * ((p.inner + 7) / 8 * 8) + k);
      const int offset = in[2].nibble(row * ((groups(p) + 7) / 8 * 8) + group);
      sum += in[1][row * groups(p) + group] * (weight - offset) * in[3][k * p.cols + col];
    }
    return sum;
  };
  kernel.reference_cost = [](const Problem& p) { return 2.0 * static_cast<double>(p.inner); };
  kernel.workspace_bytes = [](const Problem& p, Device device) { return cpu_matmul_workspace(p, device); };
  return kernel;
}
#endif

#if WM_PRIMER_CPU
void run(const Problem& p, const Arguments& a) {
  by_dtype(p.dtype, [&](auto type) {
    using T = decltype(type);
    auto* const workspace = static_cast<float*>(a.workspace);
    const T* const y = a.input<T>(3);
    if (p.cols == 1 && p.inner % (8 * kWidth) == 0 && p.group_size % (8 * kWidth) == 0) {
      for (std::int64_t k = 0; k < p.inner; ++k) {
        const std::int64_t within = k % (8 * kWidth);
        workspace[k - within + within % 8 * kWidth + within / 8] = to_float(y[k]);
      }
      for_parts(p.rows, 1, static_cast<double>(p.rows * p.inner), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
          a.output<T>(0)[row] = from_float<T>(Int4Row<T>(p, a, row).multiply(p, workspace));
        }
      });
      return;
    }
    const auto fill_row = [&](std::int64_t, std::int64_t row, float* out) { Int4Row<T>(p, a, row).dequantize(p, out); };
    Problem one_batch = p;
    one_batch.batch = 1;
    cpu_matmul(one_batch, fill_row, y, a.output<T>(0), workspace);
  });
}
#endif

#if WM_PRIMER_CUDA
template <class T>
__global__ void __launch_bounds__(tile_matmul::kThreads)
    kernel(int4::Weights<T> a, const T* y, T* z, std::int64_t cols, std::int64_t down, std::int64_t tiles) {
  for (std::int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const std::int64_t row = tile % down * tile_matmul::kTile, col = tile / down * tile_matmul::kTile;
    tile_matmul::multiply<T>(
        a.inner,
        [&](int i, std::int64_t k) { return from_float<T>(row + i < a.rows && k < a.inner ? a(row + i, k) : 0.0f); },
        [&](std::int64_t k, int j) {
          return k < a.inner && col + j < cols ? y[k * cols + col + j] : from_float<T>(0.0f);
        },
        [&](int i, int j, float sum) {
          if (row + i < a.rows && col + j < cols) z[(row + i) * cols + col + j] = from_float<T>(sum);
        });
  }
}

void run(const Problem& p, const Arguments& a, StreamView stream) {
  by_dtype(p.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const auto weights = int4::make_weights<T>(a, p);
    const T* const y = a.input<T>(3);
    T* const z = a.output<T>(0);
#if WARPMETER_SM90A
    if (int4::gemv_sm90::takes(p, weights, stream)) return int4::gemv_sm90::launch(weights, y, z, stream);
#endif
    if (int4::gemv_takes<T>(p, stream)) return int4::launch_gemv(weights, y, z, stream);
#if WARPMETER_SM90A
    if constexpr (sizeof(T) == 2) {
      constexpr int kStep = matmul_sm90::kTileInner;
      if (p.inner % kStep == 0 && p.group_size % kStep == 0 && matmul_sm90::takes(stream, 1, p.rows, p.cols, p.inner)) {
        int4::PackedA<T> packed{};
        packed.weights = weights;
        packed.steps = static_cast<int>(p.inner / kStep);
        packed.steps_of_group = static_cast<int>(std::min(p.group_size, p.inner) / kStep);
        return matmul_sm90::launch(matmul_sm90::Params{}, packed, y, z, 1, p.rows, p.cols, p.inner, stream);
      }
    }
#endif
    const std::int64_t down = ceil_div(p.rows, tile_matmul::kTile);
    const std::int64_t tiles = down * ceil_div(p.cols, tile_matmul::kTile);
    kernel<T><<<grid_x(tiles), tile_matmul::kThreads, 0, handle(stream)>>>(weights, y, z, p.cols, down, tiles);
    check_launch();
  });
}
#endif

}  // namespace warpmeter::primer::int4_matmul::WM_PRIMER_PART
