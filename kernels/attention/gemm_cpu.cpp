#include <algorithm>
#include <limits>
#include <memory>
#include <string>

#include <cblas.h>

#include "kernels/attention/detail/gemm_plan.hpp"
#include "kernels/attention/detail/parallel_work.hpp"
#include "kernels/attention/detail/row_ops.hpp"
#include "kernels/attention/gemm.hpp"
#include "kernels/runtime/check.hpp"
#include "kernels/runtime/cpu_isa.hpp"
#include "kernels/runtime/parallel.hpp"

namespace warpmeter::attention {

namespace {

// Blocks of the 16-bit path: A 256 x 256, B 256 x 256 and C 256 x 256 in fp32 stay in a core's second-level cache.
constexpr std::int64_t kBlock = 256;
static_assert(kMaxGemmPanel <= kBlock);
constexpr std::int64_t kWantedUnits = 64;  // panels to deal: enough for the cores of a workstation
constexpr std::int64_t kMinPanel = 64;     // below this B is packed, or its blocks are fetched, again and again

/// Keeps OpenBLAS to the calling thread, from the first product to the process's end. Its number of threads is the
/// process's; setting it back after each product frees and takes the other threads' buffers every time, which costs
/// more than a small product.
void use_single_threaded_blas() {
  if (openblas_get_num_threads() != 1) openblas_set_num_threads(1);
}

struct Span {
  std::int64_t begin = 0, end = 0;
  [[nodiscard]] std::int64_t size() const { return std::max<std::int64_t>(0, end - begin); }
};

/// What of C's columns and of the inner dimension the rows [begin, end) of C need.
Span needed_columns(const GemmProblem& p, Span rows) {
  if (p.skip != Skip::columns) return {0, p.n};
  return {0, std::clamp<std::int64_t>(rows.end + p.diagonal, 0, p.n)};
}
Span needed_inner(const GemmProblem& p, Span rows) {
  if (p.skip == Skip::inner_end) return {0, std::clamp<std::int64_t>(rows.end + p.diagonal, 0, p.k)};
  if (p.skip == Skip::inner_begin) return {std::clamp<std::int64_t>(rows.begin - p.diagonal, 0, p.k), p.k};
  return {0, p.k};
}

/// The problem's shape alone decides, so that the bits do not depend on the machine.
std::int64_t panel_rows(const GemmProblem& p) {
  std::int64_t rows = kMaxGemmPanel;
  while (rows > kMinPanel && p.batch * p.heads * ((p.m + rows - 1) / rows) < kWantedUnits) rows /= 2;
  return rows;
}

int blas_int(std::int64_t value) {
  WM_CHECK(value >= 0 && value <= std::numeric_limits<int>::max(), "a matrix dimension leaves the BLAS's 32 bits");
  return static_cast<int>(value);
}

/// A stored matrix: element (row, column) of what is in memory, `bytes` an element.
struct Stored {
  const void* data;
  std::int64_t row_stride;
  std::size_t bytes;
  [[nodiscard]] const void* at(std::int64_t row, std::int64_t column) const {
    return static_cast<const char*>(data) + (row * row_stride + column) * static_cast<std::int64_t>(bytes);
  }
};

Stored stored(const ConstOperand& operand, std::int64_t batch, std::int64_t head, std::size_t bytes) {
  const std::int64_t offset = batch * operand.batch_stride + head * operand.head_stride;
  return {static_cast<const char*>(operand.data) + offset * static_cast<std::int64_t>(bytes), operand.row_stride,
          bytes};
}

/// c = op(a) op(b) + (add ? c : 0), all fp32; leading dimensions as in row-major BLAS.
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

/// OpenBLAS's kernels for AVX-512 multiply matrices of up to 100^3 multiply-adds as they lie (but not by a B^T): no
/// packing, no buffer to fetch from the core that had it last. These blocks stay below that, with B in the first-level
/// cache. Larger products spend a tenth of their time on packing, and half where C is narrow.
constexpr std::int64_t kUnpackedProducts = 1'000'000;
constexpr std::int64_t kUnpackedRows = 128, kUnpackedColumns = 64;
constexpr std::int64_t kUnpackedB = 6144;           // elements: 24 KiB
constexpr std::int64_t kLeastUnpackedColumns = 16;  // below a vector packing is the lesser evil

/// sgemm() in such blocks; B^T is written out block by block.
void sgemm_in_blocks(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k, const float* a,
                     std::int64_t lda, const float* b, std::int64_t ldb, bool add, float* c, std::int64_t ldc) {
  const std::int64_t rows = std::min(m, kUnpackedRows), columns = std::min(n, kUnpackedColumns);
  const std::int64_t most = std::min(kUnpackedB / columns, kUnpackedProducts / (rows * columns));
  const std::int64_t cuts = (k + most - 1) / most, depth = (k + cuts - 1) / cuts;
  const auto multiply = [&](std::int64_t m0, std::int64_t n0, std::int64_t k0, const float* block_b,
                            std::int64_t stride_b) {
    sgemm(transpose_a, false, std::min(rows, m - m0), std::min(columns, n - n0), std::min(depth, k - k0),
          transpose_a ? a + k0 * lda + m0 : a + m0 * lda + k0, lda, block_b, stride_b, add || k0 > 0, c + m0 * ldc + n0,
          ldc);
  };
  if (transpose_b) {
    alignas(64) float block[kUnpackedB];
    for (std::int64_t n0 = 0; n0 < n; n0 += columns) {
      const std::int64_t width = std::min(columns, n - n0);
      for (std::int64_t k0 = 0; k0 < k; k0 += depth) {
        const std::int64_t height = std::min(depth, k - k0);
        cblas_somatcopy(CblasRowMajor, CblasTrans, blas_int(width), blas_int(height), 1.0f, b + n0 * ldb + k0,
                        blas_int(std::max(ldb, height)), block, blas_int(width));
        for (std::int64_t m0 = 0; m0 < m; m0 += rows) multiply(m0, n0, k0, block, width);
      }
    }
    return;
  }
  const auto strip = [&](std::int64_t m0, std::int64_t k0) {
    for (std::int64_t n0 = 0; n0 < n; n0 += columns) multiply(m0, n0, k0, b + k0 * ldb + n0, ldb);
  };
  // Along the rows of A in memory, whichever they are: what lies beside is then still, or already, in the cache.
  if (transpose_a) {
    for (std::int64_t k0 = 0; k0 < k; k0 += depth) {
      for (std::int64_t m0 = 0; m0 < m; m0 += rows) strip(m0, k0);
    }
  } else {
    for (std::int64_t m0 = 0; m0 < m; m0 += rows) {
      for (std::int64_t k0 = 0; k0 < k; k0 += depth) strip(m0, k0);
    }
  }
}

struct Unit {
  std::int64_t batch, head;
  Span rows;
};

void compute_fp32(const GemmProblem& p, bool blocks, const Unit& unit, ConstOperand a, ConstOperand b, Operand c) {
  const Span columns = needed_columns(p, unit.rows), inner = needed_inner(p, unit.rows);
  if (columns.size() == 0) return;
  float* out = c.row<float>(unit.batch, unit.head, unit.rows.begin);
  if (inner.size() == 0) {
    for (std::int64_t r = 0; r < unit.rows.size(); ++r) std::fill_n(out + r * c.row_stride, columns.size(), 0.0f);
    return;
  }
  for (std::int64_t t = 0; t < p.terms; ++t) {
    const std::int64_t head = unit.head * p.terms + t;
    const Stored sa = stored(a, unit.batch, head / p.sharing_a, sizeof(float));
    const Stored sb = stored(b, unit.batch, head / p.sharing_b, sizeof(float));
    const auto* pa = static_cast<const float*>(p.transpose_a ? sa.at(inner.begin, unit.rows.begin)
                                                             : sa.at(unit.rows.begin, inner.begin));
    const auto* pb = static_cast<const float*>(p.transpose_b ? sb.at(0, inner.begin) : sb.at(inner.begin, 0));
    const auto multiply = blocks ? sgemm_in_blocks : sgemm;
    multiply(p.transpose_a, p.transpose_b, unit.rows.size(), columns.size(), inner.size(), pa, sa.row_stride, pb,
             sb.row_stride, t > 0, out, c.row_stride);
  }
}

/// Widens `rows` x `columns` elements from (row, column) of a 16-bit matrix into a dense fp32 block.
void widen(const detail::RowOps& ops, const Stored& from, std::int64_t row, std::int64_t column, std::int64_t rows,
           std::int64_t columns, float* block) {
  for (std::int64_t r = 0; r < rows; ++r) ops.to_float(from.at(row + r, column), block + r * columns, columns);
}

void compute_16bit(const GemmProblem& p, bool blocks, const Unit& unit, ConstOperand a, ConstOperand b, Operand c,
                   float* store) {
  const detail::RowOps& ops = detail::row_ops(p.dtype);
  const auto multiply = blocks ? sgemm_in_blocks : sgemm;
  const std::size_t bytes = size_of(p.dtype);
  float *block_a = store, *block_b = store + kBlock * kBlock, *block_c = store + 2 * kBlock * kBlock;
  const std::int64_t rows = unit.rows.size();
  const Span columns = needed_columns(p, unit.rows), inner = needed_inner(p, unit.rows);
  for (std::int64_t n0 = columns.begin; n0 < columns.end; n0 += kBlock) {
    const std::int64_t n = std::min(kBlock, columns.end - n0);
    if (inner.size() == 0) std::fill_n(block_c, rows * n, 0.0f);
    bool add = false;
    for (std::int64_t t = 0; t < p.terms; ++t) {
      const std::int64_t head = unit.head * p.terms + t;
      const Stored sa = stored(a, unit.batch, head / p.sharing_a, bytes);
      const Stored sb = stored(b, unit.batch, head / p.sharing_b, bytes);
      for (std::int64_t k0 = inner.begin; k0 < inner.end; k0 += kBlock) {
        const std::int64_t k = std::min(kBlock, inner.end - k0);
        if (p.transpose_a) {
          widen(ops, sa, k0, unit.rows.begin, k, rows, block_a);
        } else {
          widen(ops, sa, unit.rows.begin, k0, rows, k, block_a);
        }
        if (p.transpose_b) {
          widen(ops, sb, n0, k0, n, k, block_b);
        } else {
          widen(ops, sb, k0, n0, k, n, block_b);
        }
        multiply(p.transpose_a, p.transpose_b, rows, n, k, block_a, p.transpose_a ? rows : k, block_b,
                 p.transpose_b ? k : n, add, block_c, n);
        add = true;
      }
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      char* out = static_cast<char*>(c.data) + (unit.batch * c.batch_stride + unit.head * c.head_stride +
                                                (unit.rows.begin + r) * c.row_stride + n0) *
                                                   static_cast<std::int64_t>(bytes);
      ops.from_float(block_c + r * n, out, n);
    }
  }
}

}  // namespace

namespace detail {

GemmPlan gemm_plan(const GemmProblem& problem) {
  return {panel_rows(problem), problem.n >= kLeastUnpackedColumns && cpu_isa() == CpuIsa::avx512};
}

void gemm_cpu(const GemmPlan& plan, const GemmProblem& problem, ConstOperand a, ConstOperand b, Operand c) {
  const std::int64_t rows = plan.rows;
  WM_CHECK(rows >= 1 && rows <= kMaxGemmPanel, "a panel of " + std::to_string(rows) + " rows");
  const std::int64_t panels = (problem.m + rows - 1) / rows;
  const bool wide = storage_of(problem.dtype) == DType::fp32;
  WM_CHECK(wide || is_16bit(problem.dtype), "matrix products are of fp32, bf16 or fp16");
  const auto store = std::unique_ptr<float[]>(
      wide ? nullptr : new float[static_cast<std::size_t>(num_threads()) * 3 * kBlock * kBlock]);
  use_single_threaded_blas();
  constexpr double kMultiplyAddsPerNs = 25;
  const double panel_ns = static_cast<double>(rows * problem.n * problem.k * problem.terms) / kMultiplyAddsPerNs;
  const std::int64_t matrices = problem.batch * problem.heads;
  const auto compute = [&](std::int64_t matrix, std::int64_t panel, int worker) {
    const Unit unit{
        matrix / problem.heads, matrix % problem.heads, {panel * rows, std::min(problem.m, (panel + 1) * rows)}};
    if (wide) {
      compute_fp32(problem, plan.blocks, unit, a, b, c);
    } else {
      compute_16bit(problem, plan.blocks, unit, a, b, c, store.get() + std::int64_t{worker} * 3 * kBlock * kBlock);
    }
  };
  // Even work too is dealt as cores come free: a virtual machine's are not equally fast (dev/naive_cpu.md).
  parallel_for_work(matrices * panels, panel_ns, [&](std::int64_t index, int worker) {
    // The longest panels under a causal mask come first: late short ones even out the end.
    const std::int64_t place = index / matrices;
    const bool last_first = problem.skip == Skip::columns || problem.skip == Skip::inner_end;
    compute(index % matrices, last_first ? panels - 1 - place : place, worker);
  });
}

}  // namespace detail

void gemm_cpu(const GemmProblem& problem, ConstOperand a, ConstOperand b, Operand c) {
  detail::gemm_cpu(detail::gemm_plan(problem), problem, a, b, c);
}

}  // namespace warpmeter::attention
