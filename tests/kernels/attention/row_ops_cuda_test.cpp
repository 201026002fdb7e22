#include <cmath>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/attention/cuda/row_ops.hpp"
#include "kernels/attention/detail/row_ops.hpp"
#include "kernels/runtime/allocator.hpp"
#include "kernels/runtime/tensor.hpp"

namespace warpmeter::attention::detail {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Row lengths on both sides of what a warp and a block hold, of 16-byte alignment, and beyond.
constexpr std::int64_t kLengths[] = {1,    2,     3,     7,     8,     31,    64,    65,    511,  512,  513,
                                     1016, 1017,  1024,  1025,  1031,  2048,  2049,  4096,  4097, 4099, 8192,
                                     8195, 16384, 16385, 16381, 32768, 32769, 32761, 40000, 70001};
constexpr DType kTypes[] = {DType::fp32, DType::bf16, DType::fp16};

class CudaRowOpsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device: " << cuda_unavailable_reason();
    stream_ = std::make_unique<Stream>(Device::cuda());
    allocator_ = std::make_unique<CachingAllocator>(Device::cuda());
  }
  [[nodiscard]] Context context() const { return {stream_->view(), allocator_.get()}; }
  [[nodiscard]] Context host() { return {{Device::cpu(), nullptr}, &host_allocator_}; }

  /// A matrix on the device from floats that the storage type holds exactly once rounded; `rounded` gets them back.
  Tensor upload(std::vector<float>& values, DType dtype) {
    Tensor tensor(host(), {static_cast<std::int64_t>(values.size())}, dtype);
    row_ops(dtype).from_float(values.data(), tensor.data(), tensor.elements());
    row_ops(dtype).to_float(tensor.data(), values.data(), tensor.elements());
    return tensor.to(context());
  }
  std::vector<float> download(const Tensor& tensor) {
    synchronize(context().stream);
    const Tensor copy = tensor.to(host());
    std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
    row_ops(tensor.dtype()).to_float(copy.data(), values.data(), tensor.elements());
    return values;
  }

  CachingAllocator host_allocator_{Device::cpu()};
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<CachingAllocator> allocator_;
};

/// Values in [-4, 4], the same for the same place.
float value(std::int64_t index, std::uint64_t salt) {
  std::uint64_t z = static_cast<std::uint64_t>(index) * 0x9E3779B97F4A7C15u + salt;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return static_cast<float>(z >> 40) * 0x1p-21f - 4.0f;
}

struct Shape {
  ScoreRows rows;
  std::string text;
};

/// Matrices of rows of one length: every element counts; causal, one panel; causal in small panels, rows unseen.
std::vector<Shape> shapes(std::int64_t length) {
  std::vector<Shape> result;
  const std::int64_t seq_len = length > 9000 ? 3 : 9;
  ScoreRows rows;
  rows.rows = 2 * seq_len;
  rows.seq_len = seq_len;
  rows.kv_len = length;
  result.push_back({rows, "whole"});
  rows.causal = true;
  rows.diagonal = length - seq_len;
  result.push_back({rows, "causal"});
  rows.diagonal = length / 2 - 4;  // not a problem's, but rows that end in the middle
  rows.first_row = std::max<std::int64_t>(0, -rows.diagonal);
  rows.panel_shift = 1;
  result.push_back({rows, "panels"});
  return result;
}

std::size_t place(std::int64_t row, std::int64_t column, const ScoreRows& rows) {
  return static_cast<std::size_t>(row * rows.kv_len + column);
}

double tolerance(DType dtype, double magnitude) {
  return (dtype == DType::fp32 ? 2e-6 : dtype == DType::bf16 ? 0x1p-8 : 0x1p-11) * magnitude + 1e-7;
}

TEST_F(CudaRowOpsTest, Softmax) {
  for (const DType dtype : kTypes) {
    for (const std::int64_t length : kLengths) {
      for (const Shape& shape : shapes(length)) {
        const ScoreRows& rows = shape.rows;
        for (const Order order : {Order::ascending, Order::descending}) {
          const bool in_place = order == Order::descending;
          SCOPED_TRACE(testing::Message() << name(dtype) << " " << length << " " << shape.text << " " << in_place);
          std::vector<float> s(place(rows.rows, 0, rows));
          for (std::size_t i = 0; i < s.size(); ++i) s[i] = value(static_cast<std::int64_t>(i), 1);
          for (std::int64_t row = 0; row < rows.rows; ++row) {  // nothing beyond may be read
            for (std::int64_t c = rows.visible(row % rows.seq_len); c < length; ++c) s[place(row, c, rows)] = NAN;
          }
          if (rows.visible(0) > 1) s[place(0, 0, rows)] = static_cast<float>(-kInfinity);
          const Tensor in = upload(s, dtype);
          Tensor out = in;
          if (!in_place) {
            out = Tensor(context(), {in.elements()}, dtype);
            out.fill_bytes(0xFF, context().stream);
          }
          const Tensor lse(context(), {rows.rows}, DType::fp32);
          constexpr float kFactor = 0.7f;
          cuda_row_ops(dtype).softmax(rows, in.data(), out.data(), lse.data_as<float>(), kFactor, order,
                                      context().stream);
          const std::vector<float> p = download(out), got_lse = download(lse);
          for (std::int64_t row = 0; row < rows.rows; ++row) {
            const std::int64_t visible = rows.visible(row % rows.seq_len), end = rows.zeros_end(row % rows.seq_len);
            double sum = 0, worst = 0, most = 0;
            for (std::int64_t c = 0; c < visible; ++c) sum += std::exp(double(kFactor) * s[place(row, c, rows)]);
            for (std::int64_t c = 0; c < length; ++c) {
              const double got = p[place(row, c, rows)];
              if (c < visible) {
                const double expected = std::exp(double(kFactor) * s[place(row, c, rows)]) / sum;
                worst = std::isnan(got) ? kInfinity : std::max(worst, std::fabs(got - expected));
                most = std::max(most, expected);
              } else if (c < end) {
                ASSERT_EQ(got, 0.0) << "row " << row << " column " << c;
              } else {
                ASSERT_TRUE(std::isnan(got)) << "row " << row << " column " << c << " was written";
              }
            }
            ASSERT_LE(worst, tolerance(dtype, most)) << "row " << row;
            if (visible == 0) {
              ASSERT_EQ(got_lse[std::size_t(row)], -kInfinity) << "row " << row;
            } else {
              ASSERT_NEAR(got_lse[std::size_t(row)], std::log(sum), 1e-5) << "row " << row;
            }
          }
        }
      }
    }
  }
}

TEST_F(CudaRowOpsTest, SoftmaxOfInfinitiesAndNan) {
  for (const std::int64_t length : {40, 3000, 40000}) {
    ScoreRows rows;
    rows.rows = 4;
    rows.kv_len = length;
    std::vector<float> s(place(4, 0, rows), 0.0f);
    for (std::int64_t c = 0; c < length; ++c) s[place(0, c, rows)] = static_cast<float>(-kInfinity);
    s[place(1, length / 2, rows)] = NAN;
    for (std::int64_t c = 0; c < length; ++c) s[place(2, c, rows)] = -60000.0f + (c == 7 ? 100.0f : 0.0f);
    for (std::int64_t c = 0; c < length; ++c) s[place(3, c, rows)] = 30000.0f;
    const Tensor in = upload(s, DType::fp32), lse(context(), {4}, DType::fp32);
    cuda_row_ops(DType::fp32)
        .softmax(rows, in.data(), in.data(), lse.data_as<float>(), 1.0f, Order::ascending, context().stream);
    const std::vector<float> p = download(in), got_lse = download(lse);
    for (std::int64_t c = 0; c < length; ++c) {
      ASSERT_EQ(p[place(0, c, rows)], 0.0f);
      ASSERT_TRUE(std::isnan(p[place(1, c, rows)]));
      ASSERT_NEAR(p[place(2, c, rows)], c == 7 ? 1.0f : 0.0f, 1e-6);
      ASSERT_NEAR(p[place(3, c, rows)] * float(length), 1.0f, 1e-5);
    }
    EXPECT_EQ(got_lse[0], -kInfinity);
    EXPECT_TRUE(std::isnan(got_lse[1]));
    EXPECT_NEAR(got_lse[2], -59900.0f, 0.01);
    EXPECT_NEAR(got_lse[3], 30000.0 + std::log(double(length)), 0.01);
  }
}

TEST_F(CudaRowOpsTest, SoftmaxBackward) {
  for (const DType dtype : kTypes) {
    for (const std::int64_t length : kLengths) {
      for (const Shape& shape : shapes(length)) {
        const ScoreRows& rows = shape.rows;
        for (const Order order : {Order::ascending, Order::descending}) {
          const bool in_place = order == Order::descending;
          SCOPED_TRACE(testing::Message() << name(dtype) << " " << length << " " << shape.text << " " << in_place);
          std::vector<float> p(place(rows.rows, 0, rows)), dp(p.size());
          for (std::size_t i = 0; i < p.size(); ++i) {
            p[i] = (value(static_cast<std::int64_t>(i), 2) + 4.0f) / (4.0f * float(length));
            dp[i] = value(static_cast<std::int64_t>(i), 3);
          }
          for (std::int64_t row = 0; row < rows.rows; ++row) {
            for (std::int64_t c = rows.visible(row % rows.seq_len); c < length; ++c) {
              p[place(row, c, rows)] = dp[place(row, c, rows)] = NAN;
            }
          }
          const Tensor device_p = upload(p, dtype), device_dp = upload(dp, dtype);
          Tensor out = device_dp;
          if (!in_place) {
            out = Tensor(context(), {out.elements()}, dtype);
            out.fill_bytes(0xFF, context().stream);
          }
          constexpr float kFactor = 0.25f;
          cuda_row_ops(dtype).softmax_backward(rows, device_p.data(), device_dp.data(), out.data(), kFactor, order,
                                               context().stream);
          const std::vector<float> ds = download(out);
          for (std::int64_t row = 0; row < rows.rows; ++row) {
            const std::int64_t visible = rows.visible(row % rows.seq_len), end = rows.zeros_end(row % rows.seq_len);
            double d = 0, worst = 0, most = 0;
            for (std::int64_t c = 0; c < visible; ++c) d += double(p[place(row, c, rows)]) * dp[place(row, c, rows)];
            for (std::int64_t c = 0; c < length; ++c) {
              const double got = ds[place(row, c, rows)];
              if (c < visible) {
                const double expected = p[place(row, c, rows)] * (dp[place(row, c, rows)] - d) * double(kFactor);
                worst = std::isnan(got) ? kInfinity : std::max(worst, std::fabs(got - expected));
                most = std::max(most, p[place(row, c, rows)] * 4.0 * double(kFactor));
              } else if (c < end) {
                ASSERT_EQ(got, 0.0) << "row " << row << " column " << c;
              } else {
                ASSERT_TRUE(std::isnan(got)) << "row " << row << " column " << c << " was written";
              }
            }
            ASSERT_LE(worst, tolerance(dtype, most)) << "row " << row;
          }
        }
      }
    }
  }
}

TEST_F(CudaRowOpsTest, ScaleAndMask) {
  for (const DType dtype : kTypes) {
    for (const std::int64_t length : kLengths) {
      for (const Shape& shape : shapes(length)) {
        const ScoreRows& rows = shape.rows;
        for (const Order order : {Order::ascending, Order::descending}) {
          SCOPED_TRACE(testing::Message() << name(dtype) << " " << length << " " << shape.text);
          std::vector<float> s(place(rows.rows, 0, rows));
          for (std::size_t i = 0; i < s.size(); ++i) s[i] = value(static_cast<std::int64_t>(i), 4);
          const Tensor in = upload(s, dtype);
          const Tensor scaled(context(), {in.elements() + 64}, dtype), masked(context(), {in.elements() + 64}, dtype);
          scaled.fill_bytes(0xFF, context().stream);
          masked.fill_bytes(0xFF, context().stream);
          cuda_row_ops(dtype).scale(in.data(), scaled.data(), in.elements(), 0.125f, order, context().stream);
          cuda_row_ops(dtype).mask(rows, in.data(), masked.data(), static_cast<float>(-kInfinity), order,
                                   context().stream);
          const std::vector<float> got_scaled = download(scaled), got_masked = download(masked);
          for (std::int64_t row = 0; row < rows.rows; ++row) {
            for (std::int64_t c = 0; c < length; ++c) {
              const std::size_t at = place(row, c, rows);
              ASSERT_NEAR(got_scaled[at], s[at] * 0.125f, dtype == DType::fp16 ? 1e-7 : 0.0) << row << " " << c;
              ASSERT_EQ(got_masked[at], c < rows.visible(row % rows.seq_len) ? s[at] : -kInfinity) << row << " " << c;
            }
          }
          for (std::size_t i = s.size(); i < s.size() + 64; ++i) {
            ASSERT_TRUE(std::isnan(got_scaled[i]) && std::isnan(got_masked[i])) << "written beyond the matrix";
          }
        }
      }
    }
  }
}

TEST_F(CudaRowOpsTest, RowsOfOperands) {
  for (const DType dtype : kTypes) {
    // (2, 3, 5, 7) inside strides of its own.
    const Operand strides{nullptr, 400, 120, 11};
    std::vector<float> sums(2 * 3 * 5 * 7);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] = value(static_cast<std::int64_t>(i), 5);
    std::vector<float> rounded = sums;
    const Tensor in = upload(sums, DType::fp32);
    static_cast<void>(upload(rounded, dtype));
    const Tensor out(context(), {800}, dtype);
    out.fill_bytes(0xFF, context().stream);
    Operand operand = strides;
    operand.data = out.data();
    cuda_row_ops(dtype).round_to(in.data_as<float>(), operand, 2, 3, 5, 7, context().stream);
    cuda_row_ops(dtype).zero_rows(operand, 2, 3, 2, 7, context().stream);
    const std::vector<float> got = download(out);
    std::size_t written = 0, next = 0;
    for (std::int64_t b = 0; b < 2; ++b) {
      for (std::int64_t h = 0; h < 3; ++h) {
        for (std::int64_t r = 0; r < 5; ++r) {
          for (std::int64_t c = 0; c < 7; ++c, ++next) {
            ASSERT_EQ(got[std::size_t(b * 400 + h * 120 + r * 11 + c)], r < 2 ? 0.0f : rounded[next]);
          }
        }
      }
    }
    for (const float x : got) written += std::isnan(x) ? 0 : 1;
    EXPECT_EQ(written, sums.size());
  }
}

}  // namespace
}  // namespace warpmeter::attention::detail
