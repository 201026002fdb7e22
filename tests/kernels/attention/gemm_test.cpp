#include "kernels/attention/gemm.hpp"

#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include <cblas.h>
#include <gtest/gtest.h>

#include "kernels/attention/detail/gemm_plan.hpp"
#include "kernels/attention/detail/row_ops.hpp"
#include "kernels/runtime/check.hpp"
#include "kernels/runtime/cpu_isa.hpp"
#include "kernels/runtime/parallel.hpp"
#include "kernels/runtime/random.hpp"

namespace warpmeter::attention {
namespace {

/// Dense operands of a problem (rows padded by three elements) and the product by plain loops in fp64.
class Product {
 public:
  explicit Product(const GemmProblem& problem) : p_(problem) {
    const std::int64_t c_heads = p_.heads, a_heads = heads_of(p_.sharing_a), b_heads = heads_of(p_.sharing_b);
    a_ = make(a_heads, p_.transpose_a ? p_.k : p_.m, p_.transpose_a ? p_.m : p_.k, 1, a_tensor_);
    b_ = make(b_heads, p_.transpose_b ? p_.n : p_.k, p_.transpose_b ? p_.k : p_.n, 2, b_tensor_);
    c_ = make(c_heads, p_.m, p_.n, 3, c_tensor_);
    c_tensor_.fill_bytes(0xFF, {});
  }

  void run() { gemm_cpu(p_, as_const(a_), as_const(b_), c_); }
  void run(const detail::GemmPlan& plan) { detail::gemm_cpu(plan, p_, as_const(a_), as_const(b_), c_); }

  /// The largest error of the elements that are asked for, relative to the largest value; unwritten ones are NaN.
  [[nodiscard]] double error() const {
    double worst = 0, largest = 0;
    for (std::int64_t b = 0; b < p_.batch; ++b) {
      for (std::int64_t h = 0; h < p_.heads; ++h) {
        for (std::int64_t i = 0; i < p_.m; ++i) {
          for (std::int64_t j = 0; j < p_.n; ++j) {
            if (p_.skip == Skip::columns && j > i + p_.diagonal) continue;
            const double right = element(b, h, i, j);
            largest = std::max(largest, std::fabs(right));
            const double off = std::fabs(read(c_tensor_, c_, b, h, i, j) - right);
            worst = std::isnan(off) ? 1e300 : std::max(worst, off);
          }
        }
      }
    }
    return largest > 0 ? worst / largest : worst;
  }
  [[nodiscard]] const Tensor& c() const { return c_tensor_; }
  [[nodiscard]] double c_at(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    return read(c_tensor_, c_, b, h, i, j);
  }
  /// Zeros what the mask hides in a queries x keys operand, as the softmax does.
  void mask_a() {
    const std::int64_t rows = p_.transpose_a ? p_.k : p_.m, columns = p_.transpose_a ? p_.m : p_.k;
    for (std::int64_t b = 0; b < p_.batch; ++b) {
      for (std::int64_t h = 0; h < heads_of(p_.sharing_a); ++h) {
        for (std::int64_t i = 0; i < rows; ++i) {
          for (std::int64_t j = std::max<std::int64_t>(0, i + p_.diagonal + 1); j < columns; ++j) {
            const std::size_t bytes = size_of(p_.dtype);
            std::memset(
                static_cast<char*>(a_tensor_.data()) +
                    static_cast<std::size_t>(b * a_.batch_stride + h * a_.head_stride + i * a_.row_stride + j) * bytes,
                0, bytes);
          }
        }
      }
    }
  }

 private:
  [[nodiscard]] std::int64_t heads_of(std::int64_t sharing) const { return p_.heads * p_.terms / sharing; }

  Operand make(std::int64_t heads, std::int64_t rows, std::int64_t columns, std::uint64_t stream_id, Tensor& tensor) {
    const std::int64_t stride = columns + 3;
    tensor = Tensor(context_, {p_.batch * heads * rows * stride}, p_.dtype);
    fill_normal(tensor, 3, stream_id, context_.stream);
    return {tensor.data(), heads * rows * stride, rows * stride, stride};
  }
  [[nodiscard]] double read(const Tensor& tensor, const Operand& o, std::int64_t b, std::int64_t h, std::int64_t row,
                            std::int64_t column) const {
    float value = 0;
    const std::int64_t offset = b * o.batch_stride + h * o.head_stride + row * o.row_stride + column;
    detail::row_ops(p_.dtype).to_float(
        static_cast<const char*>(tensor.data()) + offset * std::int64_t(size_of(p_.dtype)), &value, 1);
    return value;
  }
  [[nodiscard]] double element(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    double sum = 0;
    for (std::int64_t t = 0; t < p_.terms; ++t) {
      const std::int64_t head = h * p_.terms + t;
      for (std::int64_t x = 0; x < p_.k; ++x) {
        const std::int64_t query = p_.skip == Skip::inner_end ? i : x, key = p_.skip == Skip::inner_end ? x : i;
        if ((p_.skip == Skip::inner_end || p_.skip == Skip::inner_begin) && key > query + p_.diagonal) continue;
        const double a = p_.transpose_a ? read(a_tensor_, a_, b, head / p_.sharing_a, x, i)
                                        : read(a_tensor_, a_, b, head / p_.sharing_a, i, x);
        const double y = p_.transpose_b ? read(b_tensor_, b_, b, head / p_.sharing_b, j, x)
                                        : read(b_tensor_, b_, b, head / p_.sharing_b, x, j);
        sum += a * y;
      }
    }
    return sum;
  }

  GemmProblem p_;
  CachingAllocator allocator_{Device::cpu()};
  Context context_{{Device::cpu(), nullptr}, &allocator_};
  Tensor a_tensor_, b_tensor_, c_tensor_;
  Operand a_, b_, c_;
};

GemmProblem problem(std::int64_t m, std::int64_t n, std::int64_t k, DType dtype) {
  GemmProblem p;
  p.batch = 2;
  p.heads = 2;
  p.m = m;
  p.n = n;
  p.k = k;
  p.dtype = dtype;
  return p;
}

constexpr DType kTypes[] = {DType::fp32, DType::bf16, DType::fp16};
double allowed(DType dtype) {
  return dtype == DType::fp32 ? 1e-6 : dtype == DType::bf16 ? 0x1p-8 * 1.01 : 0x1p-11 * 1.01;  // one rounding
}

TEST(GemmCpu, EveryTranspositionSharingAndSum) {
  for (const DType dtype : kTypes) {
    for (const bool transpose_a : {false, true}) {
      for (const bool transpose_b : {false, true}) {
        for (const std::int64_t sharing : {1, 2}) {
          for (const std::int64_t terms : {1, 3}) {
            GemmProblem p = problem(33, 17, 20, dtype);
            p.transpose_a = transpose_a;
            p.transpose_b = transpose_b;
            p.sharing_b = sharing;
            p.terms = terms;
            Product product(p);
            product.run();
            EXPECT_LT(product.error(), allowed(dtype))
                << name(dtype) << transpose_a << transpose_b << " sharing " << sharing << " terms " << terms;
          }
        }
      }
    }
  }
}

TEST(GemmCpu, SizesAroundPanelsAndBlocks) {
  for (const DType dtype : kTypes) {
    for (const auto& size : {std::array<std::int64_t, 3>{1, 1, 1}, {64, 1, 300}, {65, 257, 3}, {300, 20, 520}}) {
      GemmProblem p = problem(size[0], size[1], size[2], dtype);
      p.batch = p.heads = 1;
      Product product(p);
      product.run();
      EXPECT_LT(product.error(), allowed(dtype)) << name(dtype) << " " << size[0] << " " << size[1] << " " << size[2];
    }
  }
}

TEST(GemmCpu, EveryPlanComputesTheSame) {
  // A block more in each direction, of one row, one column and about half the depth; and blocks as deep as they come.
  for (const auto& size : {std::array<std::int64_t, 3>{129, 65, 97}, {70, 16, 385}, {33, 3, 40}}) {
    for (const DType dtype : {DType::fp32, DType::bf16}) {
      for (const int transposed : {0, 1, 2}) {
        for (const bool blocks : {false, true}) {
          GemmProblem p = problem(size[0], size[1], size[2], dtype);
          p.batch = p.heads = 1;
          p.transpose_a = transposed == 1;
          p.transpose_b = transposed == 2;
          for (const std::int64_t rows : {64, 256}) {
            Product product(p);
            product.run({rows, blocks});
            EXPECT_LT(product.error(), allowed(dtype))
                << name(dtype) << " " << size[0] << " " << size[1] << " " << size[2] << " transposed " << transposed
                << blocks << " rows " << rows;
          }
        }
      }
    }
  }
}

TEST(GemmCpu, PlanIsOfTheShape) {
  GemmProblem p = problem(512, 128, 512, DType::fp32);
  p.batch = 8;
  p.heads = 1;
  const int before = num_threads();
  set_num_threads(3);
  const detail::GemmPlan few = detail::gemm_plan(p);
  set_num_threads(64);
  const detail::GemmPlan many = detail::gemm_plan(p);
  set_num_threads(before);
  EXPECT_EQ(few.rows, 64) << "64 panels";
  EXPECT_EQ(many.rows, 64) << "the number of threads has no say in the bits";
  EXPECT_EQ(few.blocks, cpu_isa() == CpuIsa::avx512);

  p.batch = 64;
  EXPECT_EQ(detail::gemm_plan(p).rows, kMaxGemmPanel);
  p.n = 15;
  EXPECT_FALSE(detail::gemm_plan(p).blocks);
}

TEST(GemmCpu, PlansThatCannotBeAreRefused) {
  const Operand none;
  GemmProblem p = problem(2, 2, 2, DType::fp32);
  EXPECT_THROW(detail::gemm_cpu({0}, p, as_const(none), as_const(none), none), CheckError);
  EXPECT_THROW(detail::gemm_cpu({kMaxGemmPanel + 1}, p, as_const(none), as_const(none), none), CheckError);
}

TEST(GemmCpu, PartsThatNoQuerySeesAreSkippedAndChangeNothing) {
  for (const DType dtype : kTypes) {
    for (const std::int64_t diagonal : {0, 60, -150}) {
      GemmProblem p = problem(330, 330 + diagonal, 16, dtype);
      p.batch = p.heads = 1;
      p.diagonal = p.n - p.m;
      p.skip = Skip::columns;
      p.transpose_b = true;
      Product scores(p);
      scores.run();
      EXPECT_LT(scores.error(), allowed(dtype)) << name(dtype) << " columns " << diagonal;
      if (p.diagonal >= 0) {
        EXPECT_TRUE(std::isnan(scores.c_at(0, 0, 0, p.n - 1))) << "computed what nobody sees";
      }

      GemmProblem sum = problem(330, 16, p.n, dtype);
      sum.batch = sum.heads = 1;
      sum.diagonal = p.diagonal;
      sum.skip = Skip::inner_end;
      Product output(sum);
      output.mask_a();
      output.run();
      EXPECT_LT(output.error(), allowed(dtype)) << name(dtype) << " inner_end " << diagonal;

      GemmProblem gradient = problem(p.n, 16, 330, dtype);
      gradient.batch = gradient.heads = 1;
      gradient.diagonal = p.diagonal;
      gradient.skip = Skip::inner_begin;
      gradient.transpose_a = true;
      Product keys(gradient);
      keys.mask_a();
      keys.run();
      EXPECT_LT(keys.error(), allowed(dtype)) << name(dtype) << " inner_begin " << diagonal;
    }
  }
}

TEST(GemmCpu, SameBitsForAnyNumberOfThreadsAndTheBlasUsesOne) {
  const int before = num_threads(), blas_before = openblas_get_num_threads();
  openblas_set_num_threads(2);
  for (const DType dtype : kTypes) {
    Product product(problem(300, 70, 90, dtype));
    product.run();
    const Tensor first = product.c();
    std::vector<char> bits(first.bytes());
    std::memcpy(bits.data(), first.data(), bits.size());
    for (const int threads : {1, 3, 4}) {
      set_num_threads(threads);
      product.run();
      EXPECT_EQ(std::memcmp(bits.data(), product.c().data(), bits.size()), 0) << name(dtype) << " " << threads;
    }
    set_num_threads(before);
  }
  EXPECT_EQ(openblas_get_num_threads(), 1);
  openblas_set_num_threads(blas_before);
}

TEST(GemmCpu, OtherTypesAreRefused) {
  const GemmProblem p = problem(2, 2, 2, DType::int32);
  EXPECT_THROW(gemm_cpu(p, {}, {}, {}), CheckError);
}

}  // namespace
}  // namespace warpmeter::attention
