// Cache, decoding, merges and chunked prefill on a GPU, against the formula in fp64.
// Over 600 lines: every kernel and plan is held to the same batches, which are made and compared here alone.
#include <cstring>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include "kernels/attention/decode.hpp"
#include "kernels/attention/prefill.hpp"
#include "kernels/attention/streaming_attention.hpp"
#include "kernels/runtime/device.hpp"
#include "kernels/runtime/random.hpp"
#include "kernels/runtime/stream.hpp"
#include "tests/kernels/attention/serving_reference.hpp"

namespace warpmeter::attention {
namespace {

using serving_test::HostTensor;
using serving_test::reference_row;

struct Gpu {
  CachingAllocator allocator{Device::cuda()};
  Stream stream{Device::cuda()};
  Context context{stream, &allocator};

  /// The same shape on the device.
  [[nodiscard]] Tensor upload(const HostTensor& host) const {
    Tensor tensor(context, {host.batch, host.heads, host.rows, host.head_dim}, host.dtype);
    copy_bytes(tensor.data(), Device::cuda(), host.bytes.data(), Device::cpu(), host.bytes.size(), stream);
    synchronize(stream);
    return tensor;
  }
  void download(const Tensor& tensor, HostTensor& host) const {
    copy_bytes(host.bytes.data(), Device::cpu(), tensor.data(), Device::cuda(), host.bytes.size(), stream);
    synchronize(stream);
    host.decode();
  }
};

class ServingCuda : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device: " << cuda_unavailable_reason();
  }
};

struct Batch {
  Gpu& gpu;
  DecodeProblem problem;
  std::vector<std::int64_t> lengths;
  HostTensor k, v, q, o;
  Tensor device_k, device_v, device_q, device_o, device_lse;
  std::vector<float> lse;
  KvCache cache;

  Batch(Gpu& g, DecodeProblem p, std::int64_t kv_heads, std::int64_t head_dim, std::vector<std::int64_t> lengths_,
        DType cache_dtype, std::int64_t page_size = 0)
      : gpu(g),
        problem(p),
        lengths(std::move(lengths_)),
        k(HostTensor::normal(count(), kv_heads, longest(), head_dim, cache_dtype, 1)),
        v(HostTensor::normal(count(), kv_heads, longest(), head_dim, cache_dtype, 2)),
        q(HostTensor::normal(count(), p.num_heads, p.tokens, head_dim, p.dtype, 3)),
        o(count(), p.num_heads, p.tokens, head_dim, p.dtype),
        device_k(gpu.upload(k)),
        device_v(gpu.upload(v)),
        device_q(gpu.upload(q)),
        device_o(gpu.context, {count(), p.num_heads, p.tokens, head_dim}, p.dtype),
        device_lse(gpu.context, {count(), p.num_heads, p.tokens}, DType::fp32),
        lse(static_cast<std::size_t>(count() * p.num_heads * p.tokens)),
        cache(gpu.context, {count(), kv_heads, head_dim, longest() + 40, cache_dtype, page_size}) {
    cache.append(gpu.context, cache_dtype, as_const(operand_bhsd(device_k)), as_const(operand_bhsd(device_v)), lengths);
  }
  [[nodiscard]] std::int64_t count() const { return static_cast<std::int64_t>(lengths.size()); }
  [[nodiscard]] std::int64_t longest() const { return *std::max_element(lengths.begin(), lengths.end()); }

  void poison() {
    device_o.fill_bytes(0xFF, gpu.stream);
    device_lse.fill_bytes(0xFF, gpu.stream);
  }
  void download() {
    copy_bytes(lse.data(), Device::cpu(), device_lse.data(), Device::cuda(), lse.size() * 4, gpu.stream);
    gpu.download(device_o, o);
  }
  DecodePlan run(const DecodeOptions& options = {}) { return run(options, cache.view()); }
  DecodePlan run(const DecodeOptions& options, const KvView& view) {
    return run_plan(plan_decode(Device::cuda(), problem, view, options), view);
  }
  DecodePlan run_plan(const DecodePlan& plan, const KvView& view) {
    poison();
    // What is asked for: the blocks may be larger, as rests under a MiB are not split off.
    const std::size_t before = gpu.allocator.stats().current.requested;
    gpu.allocator.reset_peak();
    flash_decode(gpu.context, problem, view, plan, as_const(operand_bhsd(device_q)), operand_bhsd(device_o),
                 device_lse.data_as<float>());
    EXPECT_EQ((gpu.allocator.stats().peak.requested - before + 511) / 512 * 512, plan.workspace_bytes);
    download();
    return plan;
  }
  /// Largest error of o over largest |reference|; lse is looked at, too. Of every `step`-th sequence.
  [[nodiscard]] double error(std::int64_t step = 1) const {
    double error = 0, largest = 0;
    for (std::int64_t b = 0; b < count(); b += step) {
      for (std::int64_t h = 0; h < problem.num_heads; ++h) {
        for (std::int64_t t = 0; t < problem.tokens; ++t) {
          const std::int64_t length = lengths[static_cast<std::size_t>(b)];
          const std::int64_t keys = problem.causal ? length - problem.tokens + t + 1 : length;
          const auto expected = reference_row(q.row(b, h, t), k, v, b, h / (problem.num_heads / k.heads), keys);
          for (std::int64_t c = 0; c < k.head_dim; ++c) {
            const double off = std::abs(o.row(b, h, t)[c] - expected.o[static_cast<std::size_t>(c)]);
            if (std::isnan(off)) return INFINITY;
            error = std::max(error, off);
            largest = std::max(largest, std::abs(expected.o[static_cast<std::size_t>(c)]));
          }
          const float got = lse[static_cast<std::size_t>((b * problem.num_heads + h) * problem.tokens + t)];
          EXPECT_NEAR(got, expected.lse, 1e-5 * std::max(1.0, std::abs(expected.lse)))
              << "lse of b" << b << " h" << h << " t" << t;
        }
      }
    }
    return error / largest;
  }
};

/// P and the result are rounded to 16 bits; fp32 arithmetic otherwise.
double allowed(DType query, DType cached) {
  if (query == DType::fp32) return 1e-5;
  return (query == cached ? 2 : 1) * unit_roundoff(query) + 1e-5;
}

TEST_F(ServingCuda, EveryShapeGivesTheReference) {
  Gpu gpu;
  struct Shape {
    std::int64_t heads, kv_heads, head_dim, tokens;
  };
  for (const Shape s :
       {Shape{8, 8, 64, 1}, Shape{8, 2, 128, 1}, Shape{4, 4, 80, 1}, Shape{3, 1, 17, 2}, Shape{2, 2, 1, 1},
        Shape{8, 1, 256, 1}, Shape{32, 2, 64, 1}, Shape{4, 2, 96, 8}, Shape{6, 2, 40, 5}, Shape{10, 1, 33, 16},
        Shape{8, 2, 128, 16}, Shape{8, 2, 128, 8}, Shape{4, 1, 256, 6}, Shape{20, 1, 128, 1}, Shape{8, 1, 128, 16},
        Shape{12, 2, 128, 11}, Shape{17, 1, 64, 3}}) {
    for (const DType dtype : {DType::bf16, DType::fp32, DType::fp16}) {
      for (const std::int64_t page : {0, 16, 64}) {
        Batch batch(gpu, {s.heads, s.tokens, dtype}, s.kv_heads, s.head_dim, {s.tokens, 77, 300, 1000}, dtype, page);
        const DecodePlan plan = batch.run();
        EXPECT_LE(batch.error(), allowed(dtype, dtype))
            << s.heads << "/" << s.kv_heads << " d" << s.head_dim << " t" << s.tokens << " page " << page << " "
            << name(dtype) << " " << plan.kernel << " splits " << plan.splits;
      }
    }
  }
}

// Sixteen tokens of four heads, of as many sequences as fill the device: the forward of training takes them.
TEST_F(ServingCuda, ManyRowsOfManySequences) {
  Gpu gpu;
  const auto& device = properties(Device::cuda());
  const auto sequences = static_cast<std::size_t>(device.multiprocessors);
  struct Case {
    std::int64_t head_dim, tokens, length;
    DType dtype;
  };
  for (const Case& c : {Case{64, 16, 2069, DType::bf16}, Case{64, 9, 2048, DType::fp16}}) {
    Batch batch(gpu, {4, c.tokens, c.dtype}, 1, c.head_dim, std::vector<std::int64_t>(sequences, c.length), c.dtype);
    const DecodePlan plan = batch.run();
    if (device.sm == 90) {
      EXPECT_EQ(plan.kernel.substr(0, 10), "flash_sm90");
    }
    // One rounding more, of each part before they are merged.
    EXPECT_LE(batch.error(), allowed(c.dtype, c.dtype) + unit_roundoff(c.dtype)) << c.head_dim;
    const std::vector<float> values = batch.o.values;
    batch.run();
    EXPECT_EQ(values, batch.o.values) << "another run, other bits";
    batch.run({1, 0, Merge::tree, Deal::contiguous});  // told how many: the decoding kernel
    EXPECT_LE(batch.error(), allowed(c.dtype, c.dtype)) << c.head_dim;
  }
}

/// The keys and values of a batch in pages dealt out at random from a pool with pages to spare. Where no token lies,
/// in whole pages and behind the last token of a sequence, there are NaN.
struct ShuffledPages {
  std::int64_t page_size, pages_a_sequence, count;
  std::vector<std::int32_t> table;
  Tensor k, v, device_table;

  ShuffledPages(const Batch& batch, std::int64_t size)
      : page_size(size),
        pages_a_sequence((batch.longest() + size - 1) / size),
        count(batch.count() * pages_a_sequence + 7),
        table(static_cast<std::size_t>(count)) {
    std::iota(table.begin(), table.end(), 0);
    std::shuffle(table.begin(), table.end(), std::mt19937(static_cast<std::uint32_t>(size)));
    k = pool(batch, batch.k);
    v = pool(batch, batch.v);
    device_table = Tensor(batch.gpu.context, {count}, DType::int32);
    copy_bytes(device_table.data(), Device::cuda(), table.data(), Device::cpu(), table.size() * 4, batch.gpu.stream);
    synchronize(batch.gpu.stream);
  }
  [[nodiscard]] Tensor pool(const Batch& batch, const HostTensor& rows) const {
    HostTensor pages(count, rows.heads, page_size, rows.head_dim, rows.dtype);
    pages.poison();
    const std::size_t row_bytes = static_cast<std::size_t>(rows.head_dim) * size_of(rows.dtype);
    for (std::int64_t b = 0; b < rows.batch; ++b) {
      for (std::int64_t h = 0; h < rows.heads; ++h) {
        for (std::int64_t t = 0; t < rows.rows; t += page_size) {
          const std::int64_t page = table[static_cast<std::size_t>(b * pages_a_sequence + t / page_size)];
          std::memcpy(pages.bytes.data() + static_cast<std::size_t>((page * rows.heads + h) * page_size) * row_bytes,
                      rows.bytes.data() + static_cast<std::size_t>((b * rows.heads + h) * rows.rows + t) * row_bytes,
                      static_cast<std::size_t>(std::min(page_size, rows.rows - t)) * row_bytes);
        }
      }
    }
    return batch.gpu.upload(pages);
  }
  [[nodiscard]] KvView view(const Batch& batch) const {
    KvView view = batch.cache.view();
    view.k = k.data();
    view.v = v.data();
    view.page_size = page_size;
    view.head_stride = page_size * view.row_stride;
    view.page_stride = view.num_kv_heads * view.head_stride;
    view.page_count = count;
    view.pages = device_table.data_as<std::int32_t>();
    view.pages_stride = pages_a_sequence;
    view.paged = true;
    return view;
  }
};

// The same keys in the same order, multiplied alike: the same bits as where they lie one after another.
TEST_F(ServingCuda, ManyRowsFromPages) {
  Gpu gpu;
  const auto& device = properties(Device::cuda());
  struct Case {
    std::int64_t head_dim, tokens, length;  // what is left over behind whole tiles: nothing to all but one key
    DType dtype;
  };
  for (const Case& c : {Case{64, 16, 2064, DType::bf16}, Case{64, 9, 2069, DType::fp16},
                        Case{128, 16, 2191, DType::bf16}, Case{128, 9, 2048, DType::fp16}}) {
    const std::string text = "d" + std::to_string(c.head_dim) + " " + std::string(name(c.dtype));
    constexpr std::int64_t kKvHeads = 2, kHeads = 8;
    const auto sequences = static_cast<std::size_t>((device.multiprocessors + kKvHeads - 1) / kKvHeads);
    Batch batch(gpu, {kHeads, c.tokens, c.dtype}, kKvHeads, c.head_dim, std::vector<std::int64_t>(sequences, c.length),
                c.dtype);
    batch.run();
    EXPECT_LE(batch.error(33), allowed(c.dtype, c.dtype) + unit_roundoff(c.dtype)) << text;
    const std::vector<float> values = batch.o.values, lse = batch.lse;
    for (const std::int64_t page : {16, 64, 128, 256}) {
      const std::string paged = text + " page " + std::to_string(page);
      const ShuffledPages pages(batch, page);
      const DecodePlan plan = batch.run({}, pages.view(batch));
      if (device.sm == 90) {
        EXPECT_EQ(plan.kernel, "flash_sm90_d" + std::to_string(c.head_dim) + "_paged_" + std::string(name(c.dtype)));
        EXPECT_EQ(values, batch.o.values) << paged;
        EXPECT_EQ(lse, batch.lse) << paged;
      } else {
        EXPECT_LE(batch.error(33), allowed(c.dtype, c.dtype)) << paged;
      }
      batch.run({1, 0, Merge::tree, Deal::contiguous}, pages.view(batch));  // told how many: the decoding kernel
      EXPECT_LE(batch.error(33), allowed(c.dtype, c.dtype)) << paged;
    }
    if (c.head_dim == 64) {
      Batch cached(gpu, {kHeads, c.tokens, c.dtype}, kKvHeads, c.head_dim,
                   std::vector<std::int64_t>(sequences, c.length), c.dtype, 64);
      const DecodePlan plan = cached.run();
      if (device.sm == 90) {
        EXPECT_TRUE(plan.packed) << text;
        EXPECT_EQ(values, cached.o.values) << text;
      }
    }
  }
}

TEST_F(ServingCuda, QueriesOfAnotherTypeThanTheCache) {
  Gpu gpu;
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (const DType cached : {DType::fp32, DType::bf16, DType::fp16}) {
      Batch batch(gpu, {6, 1, dtype}, 2, 64, {530, 19}, cached, 32);
      batch.run({3, 64});
      EXPECT_LE(batch.error(), allowed(dtype, cached)) << name(dtype) << " of " << name(cached);
    }
  }
}

TEST_F(ServingCuda, EveryMergeDealSplitAndBlock) {
  Gpu gpu;
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    Batch batch(gpu, {8, 1, dtype}, 4, 64, {1000, 1, 257}, dtype, 16);
    std::vector<float> first;
    for (const Merge merge : {Merge::tree, Merge::lse, Merge::two_pass, Merge::sequential}) {
      for (const Deal deal : {Deal::contiguous, Deal::round_robin}) {
        for (const std::int64_t splits : {0, 1, 4, 5, 16}) {
          for (const std::int64_t block : {0, 16, 48, 256}) {
            if (merge == Merge::sequential && splits > 1) continue;
            batch.run({splits, block, merge, deal});
            ASSERT_LE(batch.error(), allowed(dtype, dtype))
                << name(merge) << " " << name(deal) << " " << splits << " x " << block;
            const std::vector<float> values = batch.o.values;
            batch.run({splits, block, merge, deal});
            ASSERT_EQ(values, batch.o.values) << "another run, other bits";
            if (first.empty()) first = values;
            const float tolerance = dtype == DType::fp32 ? 1e-6f : 0.02f;
            for (std::size_t i = 0; i < first.size(); ++i) ASSERT_NEAR(values[i], first[i], tolerance);
          }
        }
      }
    }
  }
}

// One length and one token: a kernel of its own where 8 parts are short enough, for as many rows as a product's half
// has.
TEST_F(ServingCuda, ShortSequences) {
  Gpu gpu;
  struct Case {
    std::int64_t heads, kv_heads, head_dim;
  };
  const auto one_length = [](std::int64_t length) { return std::vector<std::int64_t>(2, length); };
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    for (const Case& c : {Case{8, 2, 128}, Case{2, 2, 128}, Case{8, 1, 128}, Case{6, 2, 64}, Case{8, 1, 64}}) {
      // Whole groups; one key in the last; warps and halves of parts without keys; two groups a warp; parts unlike.
      for (const std::int64_t length : {449, 512, 600, 1000, 1024, 1025, 1537, 2033, 2048}) {
        for (const std::int64_t page : {0, 16, 64}) {
          if (dtype == DType::fp16 && page != 0) continue;
          Batch batch(gpu, {c.heads, 1, dtype}, c.kv_heads, c.head_dim, one_length(length), dtype, page);
          for (const Merge merge : {Merge::tree, Merge::lse}) {
            const std::string text = std::to_string(c.heads) + "/" + std::to_string(c.kv_heads) + " d" +
                                     std::to_string(c.head_dim) + " length " + std::to_string(length) + " page " +
                                     std::to_string(page) + " " + std::string(name(merge)) + " " +
                                     std::string(name(dtype));
            const DecodePlan plan = batch.run({0, 0, merge, Deal::contiguous});
            if (properties(Device::cuda()).sm >= 90) {
              EXPECT_EQ(plan.splits, 8) << text;
              EXPECT_EQ(plan.join, Join::cluster) << text;
            }
            EXPECT_LE(batch.error(), allowed(dtype, dtype)) << text;
            const std::vector<float> values = batch.o.values;
            for (int repeat = 0; repeat < 3; ++repeat) {
              batch.run({0, 0, merge, Deal::contiguous});
              EXPECT_EQ(values, batch.o.values) << text;
            }
            // The other kernel's: another order of adding, no more.
            batch.run({4, 0, merge, Deal::contiguous});
            for (std::size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(values[i], batch.o.values[i], 0.02f) << text;
          }
        }
      }
    }
  }
}

TEST_F(ServingCuda, ScoresOfTenThousandKeepTheirDigits) {
  Gpu gpu;
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    for (const Merge merge : {Merge::tree, Merge::lse, Merge::two_pass}) {
      Batch batch(gpu, {4, 1, dtype}, 2, 64, {700}, dtype);
      for (HostTensor* t : {&batch.k, &batch.q}) {
        for (float& value : t->values) value = std::round(value * 35);
        t->encode();
      }
      batch.device_k = gpu.upload(batch.k);
      batch.device_q = gpu.upload(batch.q);
      batch.cache.reset(gpu.context);
      batch.cache.append(gpu.context, dtype, as_const(operand_bhsd(batch.device_k)),
                         as_const(operand_bhsd(batch.device_v)), 700);
      batch.run({7, 32, merge});
      EXPECT_LE(batch.error(), dtype == DType::fp32 ? 2e-5 : allowed(dtype, dtype)) << name(merge);
    }
  }
}

TEST_F(ServingCuda, RowsBehindTheLastTokenAreNotData) {
  Gpu gpu;
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    Batch batch(gpu, {8, 1, dtype}, 2, 64, {37, 100}, dtype, 16);
    HostTensor nan(2, 2, 30, 64, dtype);
    nan.poison();
    const Tensor device_nan = gpu.upload(nan);
    batch.cache.append(gpu.context, dtype, as_const(operand_bhsd(device_nan)), as_const(operand_bhsd(device_nan)), 30);
    batch.cache.truncate(gpu.context, 0, 37);
    batch.cache.truncate(gpu.context, 1, 100);
    batch.run();
    EXPECT_LE(batch.error(), allowed(dtype, dtype));
  }
}

TEST_F(ServingCuda, LongSequencesFillTheDevice) {
  Gpu gpu;
  Batch batch(gpu, {4, 1, DType::bf16}, 1, 128, {20001}, DType::bf16, 64);
  const DecodePlan plan = batch.run();
  EXPECT_GT(plan.splits, 32);
  EXPECT_LE(batch.error(), allowed(DType::bf16, DType::bf16));
}

// Offsets from a sequence's first key are 64-bit. What one of 32 bits would find lies before it: zeros.
TEST_F(ServingCuda, KeysBeyondTwoBillionElementsAreFound) {
  constexpr std::int64_t kHeadDim = 128, kBefore = std::int64_t{1} << 31;
  constexpr std::int64_t kLength = (1 << 24) + 100, kKey = (1 << 24) + 37;  // beyond 2^31 / kHeadDim
  constexpr std::size_t kBytes = 2 * 2 * static_cast<std::size_t>(kBefore + kLength * kHeadDim);
  if (free_memory_bytes(Device::cuda()) < kBytes + (std::size_t{1} << 30)) GTEST_SKIP() << "it takes 18 GB";
  Gpu gpu;
  const Tensor k(gpu.context, {kBefore + kLength * kHeadDim}, DType::bf16);
  const Tensor v(gpu.context, {kBefore + kLength * kHeadDim}, DType::bf16);
  const auto put = [&](const Tensor& tensor, float value) {
    tensor.fill_bytes(0, gpu.stream);
    HostTensor row(1, 1, 1, kHeadDim, DType::bf16);
    std::fill(row.values.begin(), row.values.end(), value);
    row.encode();
    copy_bytes(tensor.data_as<std::uint16_t>() + kBefore + kKey * kHeadDim, Device::cuda(), row.bytes.data(),
               Device::cpu(), row.bytes.size(), gpu.stream);
  };
  put(k, 8);  // its score, 8 * 128 / sqrt(128), is all that counts beside zeros
  put(v, 3);
  const std::vector<std::int64_t> lengths{kLength};
  KvView view;
  view.k = k.data_as<std::uint16_t>() + kBefore;
  view.v = v.data_as<std::uint16_t>() + kBefore;
  view.dtype = DType::bf16;
  view.batch = view.num_kv_heads = 1;
  view.head_dim = view.row_stride = kHeadDim;
  view.page_size = kLength;
  view.head_stride = view.page_stride = kLength * kHeadDim;
  view.host_lengths = lengths;

  HostTensor q(1, 2, 1, kHeadDim, DType::bf16), o(1, 2, 1, kHeadDim, DType::bf16);
  std::fill(q.values.begin(), q.values.end(), 1.0f);
  q.encode();
  const Tensor device_q = gpu.upload(q), device_o = gpu.upload(o);
  const Tensor device_lse(gpu.context, {2}, DType::fp32);
  const DecodeProblem problem{2, 1, DType::bf16};
  for (const DecodeOptions& options :
       {DecodeOptions{}, DecodeOptions{7, 64, Merge::lse, Deal::round_robin}, DecodeOptions{0, 0, Merge::two_pass}}) {
    device_o.fill_bytes(0xFF, gpu.stream);
    flash_decode(gpu.context, problem, view, plan_decode(Device::cuda(), problem, view, options),
                 as_const(operand_bhsd(device_q)), operand_bhsd(device_o), device_lse.data_as<float>());
    gpu.download(device_o, o);
    for (const float value : o.values) ASSERT_EQ(value, 3) << name(options.merge);
    float lse[2];
    copy_bytes(lse, Device::cpu(), device_lse.data(), Device::cuda(), sizeof(lse), gpu.stream);
    synchronize(gpu.stream);
    for (const float value : lse) EXPECT_NEAR(value, 8 * std::sqrt(128.0), 1e-3) << name(options.merge);
  }
}

TEST_F(ServingCuda, PartsMeetInEveryPlace) {
  Gpu gpu;
  struct Case {
    std::int64_t heads, kv_heads, head_dim, tokens;
    DecodeOptions options;
    Join join;
  };
  const auto tree = [](std::int64_t splits) { return DecodeOptions{splits, 16, Merge::tree, Deal::contiguous}; };
  const auto lse = [](std::int64_t splits) { return DecodeOptions{splits, 16, Merge::lse, Deal::round_robin}; };
  const DecodeOptions two_pass{0, 16, Merge::two_pass, Deal::contiguous};
  for (const Case& c : {Case{8, 2, 128, 1, tree(1), Join::none}, Case{8, 2, 128, 1, tree(8), Join::cluster},
                        Case{8, 2, 128, 1, lse(16), Join::cluster}, Case{8, 2, 128, 1, tree(5), Join::last_block},
                        Case{8, 2, 128, 1, lse(40), Join::last_block}, Case{8, 2, 128, 1, tree(100), Join::last_block},
                        Case{8, 2, 128, 1, two_pass, Join::kernel}, Case{8, 1, 64, 5, tree(4), Join::cluster},
                        Case{8, 1, 64, 5, tree(9), Join::last_block}, Case{8, 1, 256, 5, lse(8), Join::cluster},
                        Case{16, 1, 64, 5, tree(4), Join::cluster}, Case{16, 1, 64, 5, lse(9), Join::last_block},
                        Case{8, 1, 256, 5, lse(33), Join::last_block}, Case{2, 2, 40, 1, tree(2), Join::cluster},
                        Case{2, 2, 40, 1, tree(3), Join::last_block}}) {
    const std::string text = std::to_string(c.heads) + "/" + std::to_string(c.kv_heads) + " d" +
                             std::to_string(c.head_dim) + " t" + std::to_string(c.tokens) + " splits " +
                             std::to_string(c.options.splits);
    Batch batch(gpu, {c.heads, c.tokens, DType::bf16}, c.kv_heads, c.head_dim, {3001, 5, 700}, DType::bf16);
    const DecodePlan plan = batch.run(c.options);
    if (c.join != Join::cluster || properties(Device::cuda()).sm >= 90) {
      EXPECT_EQ(plan.join, c.join) << text;
    }
    EXPECT_LE(batch.error(), allowed(DType::bf16, DType::bf16)) << text;
    const std::vector<float> values = batch.o.values;
    batch.run(c.options);
    EXPECT_EQ(values, batch.o.values) << text;
  }
}

/// Whether a block can have 227 KiB of shared memory: any shape of it then fits.
bool takes_any_block() {
  const int sm = properties(Device::cuda()).sm;
  return sm >= 90 && sm < 120;
}

/// What other devices than this one, and other batches, would take.
TEST_F(ServingCuda, EveryShapeOfABlock) {
  Gpu gpu;
  struct Case {
    std::int64_t heads, kv_heads, head_dim, tokens, splits;
  };
  for (const Case& c : {Case{8, 2, 128, 1, 1}, Case{8, 2, 128, 1, 8}, Case{8, 2, 64, 1, 1}, Case{8, 1, 64, 2, 5},
                        Case{2, 2, 40, 1, 1}, Case{2, 2, 96, 1, 3}, Case{8, 1, 64, 4, 1}, Case{16, 1, 128, 2, 4},
                        Case{8, 1, 256, 1, 1}, Case{8, 1, 256, 5, 7}}) {
    for (const DType dtype : {DType::bf16, DType::fp16}) {
      for (const DecodeBlock shape : {DecodeBlock::usual, DecodeBlock::wide, DecodeBlock::small}) {
        if (shape == DecodeBlock::wide && (c.head_dim > 128 || c.heads / c.kv_heads * c.tokens > 16)) continue;
        for (const std::vector<std::int64_t>& lengths : {std::vector<std::int64_t>{3001, 5, 700}, {1000, 1000}}) {
          Batch batch(gpu, {c.heads, c.tokens, dtype}, c.kv_heads, c.head_dim, lengths, dtype);
          DecodePlan plan = plan_decode(Device::cuda(), batch.problem, batch.cache.view(), {c.splits, 16});
          if (shape != DecodeBlock::small && shape != plan.block_shape && !takes_any_block()) continue;
          plan.block_shape = shape;
          const std::string text = "d" + std::to_string(c.head_dim) + " t" + std::to_string(c.tokens) + " splits " +
                                   std::to_string(c.splits) + " " + std::string(name(dtype)) + " shape " +
                                   std::to_string(static_cast<int>(shape));
          batch.run_plan(plan, batch.cache.view());
          EXPECT_LE(batch.error(), allowed(dtype, dtype)) << text;
          const std::vector<float> values = batch.o.values;
          batch.run_plan(plan, batch.cache.view());
          EXPECT_EQ(values, batch.o.values) << text;
        }
      }
    }
  }
}

TEST_F(ServingCuda, ABlockWithAProcessorToItselfIsWide) {
  Gpu gpu;
  const int processors = properties(Device::cuda()).multiprocessors;
  const auto shape = [&](std::int64_t sequences, std::int64_t head_dim, std::int64_t length, std::int64_t splits) {
    const std::vector<std::int64_t> lengths(static_cast<std::size_t>(sequences), length);
    const Batch batch(gpu, {2, 1, DType::bf16}, 1, head_dim, lengths, DType::bf16);
    return plan_decode(Device::cuda(), batch.problem, batch.cache.view(), {splits, 16}).block_shape;
  };
  if (!takes_any_block()) GTEST_SKIP() << "a wide block takes 200 KiB of shared memory";
  EXPECT_EQ(shape(processors, 128, 600, 1), DecodeBlock::wide);
  EXPECT_EQ(shape(processors + 1, 128, 600, 1), DecodeBlock::usual);
  EXPECT_EQ(shape(4, 256, 600, 1), DecodeBlock::usual);
  EXPECT_EQ(shape(4, 64, 100, 1), DecodeBlock::usual);
  EXPECT_EQ(shape(4, 128, 600, 2), DecodeBlock::usual);
}

TEST_F(ServingCuda, ANaNStaysOneInItsOwnRow) {
  Gpu gpu;
  for (const DType dtype : {DType::bf16, DType::fp32}) {
    Batch batch(gpu, {4, 1, dtype}, 2, 64, {700, 300}, dtype);
    batch.q.values[1] = NAN;  // of the first sequence's first head
    batch.q.encode();
    batch.device_q = gpu.upload(batch.q);
    const auto expect_one = [&](const std::string& what) {
      for (std::int64_t b = 0; b < 2; ++b) {
        for (std::int64_t h = 0; h < 4; ++h) {
          const bool expected = b == 0 && h == 0;
          ASSERT_EQ(std::isnan(batch.o.row(b, h, 0)[3]), expected) << what << " b" << b << " h" << h;
          ASSERT_EQ(std::isnan(batch.lse[static_cast<std::size_t>(b * 4 + h)]), expected)
              << what << " b" << b << " h" << h << ": " << batch.lse[static_cast<std::size_t>(b * 4 + h)];
        }
      }
    };
    for (const Merge merge : {Merge::tree, Merge::lse, Merge::two_pass, Merge::sequential}) {
      for (const std::int64_t splits : {4, 5, 40}) {  // parts that meet in a cluster, the last block, registers or all
        if (merge == Merge::sequential && splits != 4) continue;
        batch.run({merge == Merge::sequential ? 0 : splits, 16, merge});
        expect_one(std::string(name(dtype)) + " " + std::string(name(merge)) + " " + std::to_string(splits));
      }
    }
    for (const std::int64_t splits : {1, 3}) {
      const PrefillPlan plan = plan_prefill(Device::cuda(), batch.problem, batch.cache.view(), {nullptr, splits});
      batch.poison();
      prefill_attention(gpu.context, batch.problem, batch.cache.view(), plan, as_const(operand_bhsd(batch.device_q)),
                        operand_bhsd(batch.device_o), batch.device_lse.data_as<float>());
      batch.download();
      expect_one(std::string(name(dtype)) + " prefill of " + std::to_string(splits));
    }
  }
}

// Of 16 keys each there would be more partial results than the merge has room for.
TEST_F(ServingCuda, TheTwoPassFormTakesLargerBlocksWhereItMust) {
  Gpu gpu;
  Batch batch(gpu, {2, 1, DType::bf16}, 1, 64, {330001}, DType::bf16);
  const DecodePlan plan = batch.run({0, 16, Merge::two_pass});
  EXPECT_EQ(plan.block, 48);
  EXPECT_EQ(plan.parts, 6876);
  EXPECT_LE(batch.error(), allowed(DType::bf16, DType::bf16));
}

TEST_F(ServingCuda, CountersAreZeroAgainAfterEveryLaunch) {
  Gpu gpu;
  Batch batch(gpu, {8, 1, DType::bf16}, 8, 64, std::vector<std::int64_t>(16, 100), DType::bf16);
  const DecodeOptions options{3, 16};
  const DecodePlan plan = batch.run(options);
  ASSERT_EQ(plan.join, Join::last_block);
  const std::vector<float> values = batch.o.values;
  for (int i = 0; i < 1500; ++i) {  // of 128 counters each: round their store more than twice
    flash_decode(gpu.context, batch.problem, batch.cache.view(), plan, as_const(operand_bhsd(batch.device_q)),
                 operand_bhsd(batch.device_o), batch.device_lse.data_as<float>());
  }
  batch.run(options);
  EXPECT_EQ(values, batch.o.values);
}

TEST_F(ServingCuda, ChunkedPrefillSplitAndGathered) {
  Gpu gpu;
  for (const DType dtype : {DType::bf16, DType::fp32}) {
    for (const std::int64_t page : {0, 64}) {
      for (const std::int64_t splits : {0, 1, 3}) {
        Batch batch(gpu, {4, 100, dtype}, 2, 64, {1000, 1000}, dtype, page);
        const PrefillPlan plan = plan_prefill(Device::cuda(), batch.problem, batch.cache.view(), {nullptr, splits});
        batch.poison();
        prefill_attention(gpu.context, batch.problem, batch.cache.view(), plan, as_const(operand_bhsd(batch.device_q)),
                          operand_bhsd(batch.device_o), batch.device_lse.data_as<float>());
        batch.download();
        EXPECT_LE(batch.error(), dtype == DType::fp32 ? 1e-5 : 3 * unit_roundoff(dtype))
            << name(dtype) << " page " << page << " splits " << splits << " " << plan.kernel;
      }
    }
  }
}

TEST_F(ServingCuda, AHundredDecodedTokensAreTheRowsOfTheWhole) {
  Gpu gpu;
  StreamingConfig config;
  config.sequences = 2;
  config.d_model = 64;
  config.num_heads = config.num_kv_heads = 4;
  config.max_tokens = 128;
  config.chunk = 3;
  config.page_size = 16;
  StreamingWeights weights;
  std::uint64_t id = 0;
  for (Tensor* weight : {&weights.q, &weights.k, &weights.v, &weights.out}) {
    *weight = Tensor(gpu.context, {64, 64}, DType::fp32);
    fill_normal(*weight, 1, ++id, gpu.stream, 0.125f);
  }
  const HostTensor x = HostTensor::normal(2, 1, 109, 64, DType::fp32, 7);
  const auto piece = [&](std::int64_t first, std::int64_t tokens) {
    HostTensor part(2, 1, tokens, 64, DType::fp32);
    for (std::int64_t b = 0; b < 2; ++b)
      std::copy_n(x.row(b, 0, first), tokens * 64, part.values.begin() + b * tokens * 64);
    part.encode();
    Tensor tensor(gpu.context, {2, tokens, 64}, DType::fp32);
    copy_bytes(tensor.data(), Device::cuda(), part.bytes.data(), Device::cpu(), part.bytes.size(), gpu.stream);
    synchronize(gpu.stream);
    return tensor;
  };
  StreamingConfig one_shot = config;
  one_shot.chunk = 0;
  one_shot.page_size = 0;
  StreamingAttention whole(gpu.context, one_shot, weights);
  HostTensor expected(2, 1, 109, 64, DType::fp32);
  gpu.download(whole.prefill(gpu.context, piece(0, 109)), expected);
  StreamingAttention streaming(gpu.context, config, weights);
  const auto compare = [&](const Tensor& got, std::int64_t first, std::int64_t tokens) {
    HostTensor host(2, 1, tokens, 64, DType::fp32);
    gpu.download(got, host);
    for (std::int64_t b = 0; b < 2; ++b) {
      for (std::int64_t i = 0; i < tokens * 64; ++i)
        ASSERT_NEAR(host.row(b, 0, 0)[i], expected.row(b, 0, first)[i], 1e-5);
    }
  };
  compare(streaming.prefill(gpu.context, piece(0, 9)), 0, 9);
  for (std::int64_t t = 9; t < 109; ++t) compare(streaming.decode(gpu.context, piece(t, 1)), t, 1);
  streaming.reset(gpu.context);
  EXPECT_THROW((void)streaming.decode(gpu.context, piece(0, 1)), KvCacheError);
}

}  // namespace
}  // namespace warpmeter::attention
