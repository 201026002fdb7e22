// batched_matmul: z[b,i,j] = sum over k of x[b,i,k] * y[b,k,j], the notes' puzzle 11.
//
//   x      (batch, rows, inner), y (batch, inner, cols), z (batch, rows, cols), fp32, bf16 or fp16; summed in fp32
//   grid   sm_90, 16 bits: cuda/matmul_sm90.cuh, a block on each multiprocessor that goes through tiles of 128 x 256.
//          Otherwise cuda/tile_matmul.cuh, a block for each tile of 128 x 128: tensor cores in 16 bits, fp32
//          multiply-adds in fp32. Tiles count down the columns first, so that blocks next to one another share a part
//          of y
//   bound  compute: 2 * inner FLOPs for each result
#include "kernels/primer/kernel_file.hpp"

#if WM_PRIMER_CPU
#include "kernels/primer/detail/cpu_matmul.hpp"
#elif WM_PRIMER_CUDA
#include "kernels/primer/cuda/tile_matmul.cuh"
#if WARPMETER_SM90A
#include "kernels/primer/cuda/matmul_sm90.cuh"
#endif
#else
#include "kernels/primer/detail/cpu_matmul_workspace.hpp"
#endif

namespace warpmeter::primer::batched_matmul::WM_PRIMER_PART {

#if WM_PRIMER_DESCRIBES
Kernel describe() {
  Kernel kernel;
  kernel.formula = "z[b,i,j] = sum_k x[b,i,k] * y[b,k,j]";
  kernel.layout = "x (batch, rows, inner), y (batch, inner, cols), z (batch, rows, cols)";
  kernel.sizes = {Size::batch, Size::rows, Size::cols, Size::inner};
  kernel.bench = {.rows = 4096, .cols = 4096, .inner = 4096};
  kernel.notes = {.batch = 4, .rows = 32, .cols = 32, .inner = 32};
  kernel.matrix_product = true;
  kernel.inputs = [](const Problem& p) {
    return TensorSpecs{{"x", {p.batch, p.rows, p.inner}, p.dtype}, {"y", {p.batch, p.inner, p.cols}, p.dtype}};
  };
  kernel.outputs = [](const Problem& p) { return TensorSpecs{{"z", {p.batch, p.rows, p.cols}, p.dtype}}; };
  kernel.flops = [](const Problem& p) {
    return 2.0 * static_cast<double>(p.batch * p.rows * p.cols) * static_cast<double>(p.inner);
  };
  kernel.reference = [](const Problem& p, const HostTensors& in, int, std::int64_t at) {
    const std::int64_t batch = at / p.cols / p.rows, col = at % p.cols;
    double sum = 0;
    for (std::int64_t k = 0; k < p.inner; ++k) {
      sum += in[0][at / p.cols * p.inner + k] * in[1][(batch * p.inner + k) * p.cols + col];
    }
    return sum;
  };
  kernel.reference_cost = [](const Problem& p) { return static_cast<double>(p.inner); };
  kernel.workspace_bytes = [](const Problem& p, Device device) { return cpu_matmul_workspace(p, device); };
  return kernel;
}
#endif

#if WM_PRIMER_CPU
void run(const Problem& p, const Arguments& a) {
  by_dtype(p.dtype, [&](auto type) {
    using T = decltype(type);
    // A row of x as fp32, as the tiles read it.
    const auto row_of_x = [&](std::int64_t batch, std::int64_t row, float* out) {
      const T* const x = a.input<T>(0) + (batch * p.rows + row) * p.inner;
      write_row(out, p.inner, false, [&](Run run) { return run.load(x); });
    };
    cpu_matmul(p, row_of_x, a.input<T>(1), a.output<T>(0), static_cast<float*>(a.workspace));
  });
}
#endif

#if WM_PRIMER_CUDA
template <class T>
__global__ void __launch_bounds__(tile_matmul::kThreads)
    kernel(const T* x, const T* y, T* z, Problem p, std::int64_t down, std::int64_t tiles) {
  for (std::int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const std::int64_t across = (p.cols + tile_matmul::kTile - 1) / tile_matmul::kTile;
    const std::int64_t batch = tile / (down * across);
    const std::int64_t row = tile % down * tile_matmul::kTile, col = tile / down % across * tile_matmul::kTile;
    const T* const of_x = x + batch * p.rows * p.inner;
    const T* const of_y = y + batch * p.inner * p.cols;
    T* const of_z = z + batch * p.rows * p.cols;
    tile_matmul::multiply<T>(
        p.inner,
        [&](int i, std::int64_t k) {
          return row + i < p.rows && k < p.inner ? of_x[(row + i) * p.inner + k] : from_float<T>(0.0f);
        },
        [&](std::int64_t k, int j) {
          return k < p.inner && col + j < p.cols ? of_y[k * p.cols + col + j] : from_float<T>(0.0f);
        },
        [&](int i, int j, float sum) {
          if (row + i < p.rows && col + j < p.cols) of_z[(row + i) * p.cols + col + j] = from_float<T>(sum);
        });
  }
}

void run(const Problem& p, const Arguments& a, StreamView stream) {
  by_dtype(p.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const T *const x = a.input<T>(0), *const y = a.input<T>(1);
    T* const z = a.output<T>(0);
#if WARPMETER_SM90A
    if constexpr (sizeof(T) == 2) {
      if (matmul_sm90::takes(stream, p.batch, p.rows, p.cols, p.inner)) {
        matmul_sm90::Params params{};
        params.a = matmul_sm90::tensor_map(x, p.batch, p.rows, p.inner, matmul_sm90::kTileRows);
        return matmul_sm90::launch(params, matmul_sm90::SharedA<T>(), y, z, p.batch, p.rows, p.cols, p.inner, stream);
      }
    }
#endif
    const std::int64_t down = ceil_div(p.rows, tile_matmul::kTile);
    const std::int64_t tiles = p.batch * down * ceil_div(p.cols, tile_matmul::kTile);
    kernel<T><<<grid_x(tiles), tile_matmul::kThreads, 0, handle(stream)>>>(x, y, z, p, down, tiles);
    check_launch();
  });
}
#endif

}  // namespace warpmeter::primer::batched_matmul::WM_PRIMER_PART
