#include <algorithm>
#include <limits>
#include <vector>

#include <cblas.h>

#include "kernels/layers/detail/operations.hpp"
#include "kernels/layers/detail/over_rows.hpp"
#include "kernels/layers/detail/row_kernels.hpp"
#include "kernels/runtime/check.hpp"
#include "kernels/runtime/parallel.hpp"

namespace warpmeter::layers::cpu {

namespace {

constexpr std::int64_t kMostTile = 512;  // rows or columns of C in one piece: packing costs little from there on
constexpr std::int64_t kLeastTile = 64;  // below this operands are fetched again and again
constexpr std::int64_t kWantedTiles = 32;
constexpr std::int64_t kDepth = 512;  // of the inner dimension widened at once

int blas_int(std::int64_t value) {
  WM_CHECK(value >= 0 && value <= std::numeric_limits<int>::max(), "a matrix dimension leaves the BLAS's 32 bits");
  return static_cast<int>(value);
}

/// The shape alone decides, so that the bits do not depend on the machine.
struct Tiling {
  std::int64_t rows, columns, down, across;

  Tiling(std::int64_t m, std::int64_t n) : rows(std::min(m, kMostTile)), columns(std::min(n, kMostTile)) {
    count(m, n);
    while (down * across < kWantedTiles && std::max(rows, columns) >= 2 * kLeastTile) {
      (rows >= columns ? rows : columns) = (std::max(rows, columns) + 1) / 2;
      count(m, n);
    }
  }
  void count(std::int64_t m, std::int64_t n) {
    down = (m + rows - 1) / rows;
    across = (n + columns - 1) / columns;
  }
};

void sgemm(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k, const float* a,
           std::int64_t lda, const float* b, std::int64_t ldb, bool add, float* c, std::int64_t ldc) {
  // A matrix of one row may come with any stride; the BLAS insists that it covers the row.
  lda = std::max(lda, transpose_a ? m : k);
  ldb = std::max(ldb, transpose_b ? k : n);
  ldc = std::max(ldc, n);
  cblas_sgemm(CblasRowMajor, transpose_a ? CblasTrans : CblasNoTrans, transpose_b ? CblasTrans : CblasNoTrans,
              blas_int(m), blas_int(n), blas_int(k), 1.0f, a, blas_int(lda), b, blas_int(ldb), add ? 1.0f : 0.0f, c,
              blas_int(ldc));
}

class CpuMatmul : public Matmul {
 public:
  [[nodiscard]] std::unique_ptr<Matmul> beside(const Context&) override { return std::make_unique<CpuMatmul>(); }

  void multiply(const MatmulProblem& problem, const void* a, const void* b, void* c) override {
    WM_CHECK(problem.dtype == DType::fp32 || is_16bit(problem.dtype), "the CPU multiplies fp32, bf16 and fp16");
    WM_CHECK(problem.m >= 0 && problem.n >= 0 && problem.k >= 1, "a product needs an inner dimension");
    // Threads are ours: the BLAS keeps to the one that calls it.
    if (openblas_get_num_threads() != 1) openblas_set_num_threads(1);
    if (problem.m == 0 || problem.n == 0) return;
    const Tiling tiling(problem.m, problem.n);
    const std::int64_t tiles = tiling.down * tiling.across;
    const auto tile = [&](std::int64_t index, int /*worker*/) {
      const std::int64_t row = index % tiling.down * tiling.rows, column = index / tiling.down * tiling.columns;
      const std::int64_t m = std::min(tiling.rows, problem.m - row), n = std::min(tiling.columns, problem.n - column);
      if (problem.dtype == DType::fp32) {
        multiply_fp32(problem, a, b, c, row, column, m, n);
      } else {
        multiply_16bit(problem, a, b, c, row, column, m, n);
      }
    };
    if (problem.flops() < 1e6) {
      for (std::int64_t index = 0; index < tiles; ++index) tile(index, 0);
    } else {
      parallel_for(tiles, tile);
    }
  }

  [[nodiscard]] std::string kernel(const MatmulProblem&) const override { return "openblas"; }

 private:
  static void multiply_fp32(const MatmulProblem& p, const void* a, const void* b, void* c, std::int64_t row,
                            std::int64_t column, std::int64_t m, std::int64_t n) {
    const float* pa = static_cast<const float*>(a) + (p.transpose_a ? row : row * p.stride_a);
    const float* pb = static_cast<const float*>(b) + (p.transpose_b ? column * p.stride_b : column);
    sgemm(p.transpose_a, p.transpose_b, m, n, p.k, pa, p.stride_a, pb, p.stride_b, p.accumulate,
          static_cast<float*>(c) + row * p.stride_c + column, p.stride_c);
  }

  static void multiply_16bit(const MatmulProblem& p, const void* a, const void* b, void* c, std::int64_t row,
                             std::int64_t column, std::int64_t m, std::int64_t n) {
    const detail::RowKernels& kernels = detail::row_kernels(p.dtype);
    const std::size_t bytes = size_of(p.dtype);
    // The thread's own working store, like the BLAS's packing buffers.
    thread_local std::vector<float> store;
    store.resize(static_cast<std::size_t>(kMostTile * kDepth * 2 + kMostTile * kMostTile));
    float *block_a = store.data(), *block_b = block_a + kMostTile * kDepth, *sums = block_b + kMostTile * kDepth;
    std::int64_t stride = n;
    if (p.out_dtype == DType::fp32) {
      sums = static_cast<float*>(c) + row * p.stride_c + column;
      stride = p.stride_c;
    } else if (p.accumulate) {
      for (std::int64_t r = 0; r < m; ++r) {
        kernels.to_float(detail::at(c, (row + r) * p.stride_c + column, bytes), sums + r * stride, n);
      }
    }
    const auto widen = [&](const void* from, std::int64_t from_stride, std::int64_t first, std::int64_t rows,
                           std::int64_t begin, std::int64_t columns, float* to) {
      for (std::int64_t r = 0; r < rows; ++r) {
        kernels.to_float(detail::at(from, (first + r) * from_stride + begin, bytes), to + r * columns, columns);
      }
    };
    for (std::int64_t k0 = 0; k0 < p.k; k0 += kDepth) {
      const std::int64_t k = std::min(kDepth, p.k - k0);
      if (p.transpose_a) {
        widen(a, p.stride_a, k0, k, row, m, block_a);
      } else {
        widen(a, p.stride_a, row, m, k0, k, block_a);
      }
      if (p.transpose_b) {
        widen(b, p.stride_b, column, n, k0, k, block_b);
      } else {
        widen(b, p.stride_b, k0, k, column, n, block_b);
      }
      sgemm(p.transpose_a, p.transpose_b, m, n, k, block_a, p.transpose_a ? m : k, block_b, p.transpose_b ? k : n,
            p.accumulate || k0 > 0, sums, stride);
    }
    if (p.out_dtype == DType::fp32) return;
    for (std::int64_t r = 0; r < m; ++r) {
      kernels.from_float(sums + r * stride, detail::at(c, (row + r) * p.stride_c + column, bytes), n);
    }
  }
};

}  // namespace

std::unique_ptr<Matmul> make_matmul(const Context&, MatmulOptions) {
  return std::make_unique<CpuMatmul>();
}

}  // namespace warpmeter::layers::cpu
