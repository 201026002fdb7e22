#include <algorithm>
#include <cmath>

#include <cblas.h>

#include "kernels/ceilings/detail/backends.hpp"
#include "kernels/ceilings/detail/harness_buffer.hpp"
#include "kernels/ceilings/detail/random_value.hpp"
#include "kernels/runtime/parallel.hpp"

namespace warpmeter::ceilings::detail {
namespace {

/// Large enough that packing and the threads' start cost little, small enough for some hundredths of a second.
std::int64_t default_size(int threads) {
  std::int64_t n = threads <= 4 ? 1024 : threads <= 16 ? 2048 : threads <= 64 ? 4096 : 8192;
  const std::size_t memory = properties(Device::cpu()).memory_bytes;
  while (n > 256 && 3 * static_cast<std::size_t>(n * n) * sizeof(float) > memory / 8) n /= 2;
  return n;
}

/// Sets OpenBLAS's thread count for a scope. The library has one for the whole process. Its own threads are not used:
/// they go on spinning after a call and would disturb what is measured next.
class BlasThreads {
 public:
  explicit BlasThreads(int threads) : previous_(openblas_get_num_threads()) { set(threads); }
  ~BlasThreads() { set(previous_); }
  BlasThreads(const BlasThreads&) = delete;
  BlasThreads& operator=(const BlasThreads&) = delete;

 private:
  static void set(int threads) {
    if (openblas_get_num_threads() != threads) openblas_set_num_threads(threads);
  }
  int previous_;
};

class CpuMatmul final : public MatmulWorkload {
 public:
  CpuMatmul(const Context& context, std::int64_t n)
      : n_(n > 0 ? n : default_size(num_threads())),
        a_(*context.allocator, matrix_bytes()),
        b_(*context.allocator, matrix_bytes()),
        c_(*context.allocator, matrix_bytes()) {
    parallel_for(n_, [&](std::int64_t row, int) {
      for (std::int64_t i = row * n_; i < (row + 1) * n_; ++i) {
        values(a_)[i] = random_value(static_cast<std::uint64_t>(2 * i));
        values(b_)[i] = random_value(static_cast<std::uint64_t>(2 * i + 1));
        values(c_)[i] = 0;
      }
    });
  }

  [[nodiscard]] std::int64_t n() const override { return n_; }
  [[nodiscard]] DType storage() const override { return DType::fp32; }
  [[nodiscard]] Operands operands(int) const override {
    return {{a_.data(), n_, 1}, {b_.data(), n_, 1}, {c_.data(), n_, 1}};
  }
  [[nodiscard]] int variants() const override { return 2; }
  [[nodiscard]] std::string variant_name(int variant) const override {
    return variant == kOneEach ? "a block a thread" : "four blocks a thread";
  }
  void enqueue(int variant) override { multiply_blocks(num_threads(), variant == kOneEach ? 1 : 2); }

 private:
  static constexpr int kOneEach = 0;

  static float* values(const HarnessBuffer& buffer) { return static_cast<float*>(buffer.data()); }
  [[nodiscard]] std::size_t matrix_bytes() const { return static_cast<std::size_t>(n_ * n_) * sizeof(float); }

  void multiply(std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t columns) {
    const auto narrow = [](std::int64_t value) { return static_cast<blasint>(value); };
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, narrow(rows), narrow(columns), narrow(n_), 1.0f,
                values(a_) + row * n_, narrow(n_), values(b_) + column, narrow(n_), 0.0f,
                values(c_) + row * n_ + column, narrow(n_));
  }

  /// C cut into `cuts` x `cuts` blocks a thread, as square as the thread count allows: each call packs its rows of A
  /// and columns of B anew, and square blocks pack least. One block a thread packs least of all; more of them, dealt
  /// out as threads come free, suit cores that are not equally fast.
  void multiply_blocks(int threads, std::int64_t cuts) {
    const BlasThreads one(1);
    std::int64_t across = static_cast<std::int64_t>(std::sqrt(static_cast<double>(threads)));
    while (threads % across != 0) --across;
    const std::int64_t down = threads / across * cuts;
    across *= cuts;
    const std::int64_t rows = (n_ + down - 1) / down;
    const std::int64_t columns = (n_ + across - 1) / across;
    parallel_for(down * across, [&](std::int64_t block, int) {
      const std::int64_t row = block / across * rows;
      const std::int64_t column = block % across * columns;
      if (row >= n_ || column >= n_) return;
      multiply(row, std::min(rows, n_ - row), column, std::min(columns, n_ - column));
    });
  }

  std::int64_t n_;
  HarnessBuffer a_, b_, c_;
};

}  // namespace

std::unique_ptr<MatmulWorkload> make_matmul_cpu(const Context& context, std::int64_t n) {
  return std::make_unique<CpuMatmul>(context, n);
}

}  // namespace warpmeter::ceilings::detail
