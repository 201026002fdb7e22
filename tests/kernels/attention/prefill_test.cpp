#include "kernels/attention/prefill.hpp"

#include <gtest/gtest.h>

#include "kernels/attention/registry.hpp"
#include "kernels/attention/streaming_attention.hpp"
#include "kernels/runtime/random.hpp"
#include "tests/kernels/attention/serving_reference.hpp"

namespace warpmeter::attention {
namespace {

using serving_test::CpuContext;
using serving_test::HostTensor;
using serving_test::reference_row;

/// Prompts of several sequences worked through chunk by chunk, against the formula in fp64.
struct Prompt {
  CpuContext cpu;
  std::int64_t batch, heads, kv_heads, length, head_dim;
  DType dtype;
  HostTensor q, k, v, o;
  std::vector<float> lse;

  Prompt(std::int64_t batch_, std::int64_t heads_, std::int64_t kv_heads_, std::int64_t length_, std::int64_t head_dim_,
         DType dtype_)
      : batch(batch_),
        heads(heads_),
        kv_heads(kv_heads_),
        length(length_),
        head_dim(head_dim_),
        dtype(dtype_),
        q(HostTensor::normal(batch, heads, length, head_dim, dtype, 1)),
        k(HostTensor::normal(batch, kv_heads, length, head_dim, dtype, 2)),
        v(HostTensor::normal(batch, kv_heads, length, head_dim, dtype, 3)),
        o(batch, heads, length, head_dim, dtype),
        lse(static_cast<std::size_t>(batch * heads * length)) {}

  void run(std::int64_t chunk, const KvCacheConfig& config, const PrefillOptions& options = {}) {
    KvCache cache(cpu.context, config);
    o.poison();
    for (std::int64_t first = 0; first < length; first += chunk) {
      const std::int64_t tokens = std::min(chunk, length - first);
      cache.append(cpu.context, dtype, k.from_row(first), v.from_row(first), tokens);
      const DecodeProblem problem{heads, tokens, dtype};
      const PrefillPlan plan = plan_prefill(Device::cpu(), problem, cache.view(), options);
      Operand out = o.operand();
      out.data = static_cast<char*>(out.data) + first * head_dim * static_cast<std::int64_t>(size_of(dtype));
      std::vector<float> chunk_lse(static_cast<std::size_t>(batch * heads * tokens), NAN);
      const std::size_t before = cpu.allocator.stats().current.allocated;
      cpu.allocator.reset_peak();
      prefill_attention(cpu.context, problem, cache.view(), plan, q.from_row(first), out, chunk_lse.data());
      EXPECT_EQ(cpu.allocator.stats().current.allocated, before);
      EXPECT_EQ(cpu.allocator.stats().peak.allocated, before + plan.workspace_bytes);
      for (std::int64_t i = 0; i < batch * heads; ++i) {
        std::copy_n(chunk_lse.begin() + i * tokens, tokens, lse.begin() + i * length + first);
      }
    }
    o.decode();
  }
  [[nodiscard]] KvCacheConfig contiguous() const { return {batch, kv_heads, head_dim, length, dtype}; }

  [[nodiscard]] double error() const {
    double error = 0, largest = 0;
    for (std::int64_t b = 0; b < batch; ++b) {
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t t = 0; t < length; ++t) {
          const auto expected = reference_row(q.row(b, h, t), k, v, b, h / (heads / kv_heads), t + 1);
          for (std::int64_t c = 0; c < head_dim; ++c) {
            const double want = expected.o[static_cast<std::size_t>(c)];
            const double off = std::abs(o.row(b, h, t)[c] - want);
            error = off <= error ? error : off;  // a NaN stays
            if (std::isnan(off)) return INFINITY;
            largest = std::max(largest, std::abs(want));
          }
          EXPECT_NEAR(lse[static_cast<std::size_t>((b * heads + h) * length + t)], expected.lse, 2e-5);
        }
      }
    }
    return error / largest;
  }
};

TEST(Prefill, EveryChunkSizeGivesTheWhole) {
  Prompt prompt(2, 4, 2, 21, 16, DType::fp32);
  prompt.run(21, prompt.contiguous());
  EXPECT_LE(prompt.error(), 1e-5);
  const std::vector<float> whole = prompt.o.values;
  for (std::int64_t chunk = 1; chunk <= 23; ++chunk) {
    prompt.run(chunk, prompt.contiguous());
    for (std::size_t i = 0; i < whole.size(); ++i) {
      ASSERT_NEAR(prompt.o.values[i], whole[i], 1e-5) << "chunk " << chunk;
    }
  }
}

TEST(Prefill, AcrossTilesAndTypes) {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    Prompt prompt(1, 4, 1, 300, 64, dtype);
    for (const std::int64_t chunk : {128, 77, 300}) {
      prompt.run(chunk, prompt.contiguous());
      // P of a 16-bit flash is 16 bits wide, too.
      EXPECT_LE(prompt.error(), dtype == DType::fp32 ? 1e-5 : 2 * unit_roundoff(dtype)) << name(dtype) << chunk;
    }
  }
}

TEST(Prefill, EveryImplementationOfAttention) {
  Prompt prompt(1, 2, 1, 50, 32, DType::fp32);
  for (const char* impl : {"reference", "naive", "fused", "flash"}) {
    prompt.run(16, prompt.contiguous(), {find_implementation(DeviceKind::cpu, impl), 0});
    EXPECT_LE(prompt.error(), 1e-5) << impl;
  }
}

TEST(Prefill, PagesAndOtherTypesAreGathered) {
  Prompt prompt(2, 4, 2, 100, 24, DType::fp32);
  KvCacheConfig config = prompt.contiguous();
  config.page_size = 16;
  prompt.run(33, config);
  EXPECT_LE(prompt.error(), 1e-5);
  config.dtype = DType::bf16;
  prompt.run(33, config);
  // The keys and values that a bf16 cache holds.
  for (HostTensor* t : {&prompt.k, &prompt.v}) {
    HostTensor rounded(t->batch, t->heads, t->rows, t->head_dim, DType::bf16);
    rounded.values = t->values;
    rounded.encode();
    t->values = rounded.values;
  }
  EXPECT_LE(prompt.error(), 1e-5);
}

TEST(Prefill, SplitKeysGiveTheSame) {
  Prompt prompt(2, 2, 1, 1000, 16, DType::fp32);
  for (const std::int64_t splits : {2, 3, 7, 100}) {
    prompt.run(250, prompt.contiguous(), {nullptr, splits});
    EXPECT_LE(prompt.error(), 1e-5) << splits;
  }
  Prompt half(1, 2, 1, 700, 64, DType::bf16);
  half.run(200, half.contiguous(), {nullptr, 4});
  EXPECT_LE(half.error(), 3 * unit_roundoff(DType::bf16));
}

TEST(Prefill, ANaNStaysOneHoweverKeysAreSplit) {
  CpuContext cpu;
  const HostTensor k = HostTensor::normal(1, 1, 600, 16, DType::fp32, 1);
  const HostTensor v = HostTensor::normal(1, 1, 600, 16, DType::fp32, 2);
  HostTensor q = HostTensor::normal(1, 2, 3, 16, DType::fp32, 3);
  q.values[16] = NAN;  // of the first head's second query
  q.encode();
  KvCache cache(cpu.context, {1, 1, 16, 600, DType::fp32});
  cache.append(cpu.context, DType::fp32, k.from_row(0), v.from_row(0), 600);
  const DecodeProblem problem{2, 3, DType::fp32};
  for (const std::int64_t splits : {1, 4}) {
    HostTensor o(1, 2, 3, 16, DType::fp32);
    std::vector<float> lse(6);
    prefill_attention(cpu.context, problem, cache.view(),
                      plan_prefill(Device::cpu(), problem, cache.view(), {nullptr, splits}), q.from_row(0), o.operand(),
                      lse.data());
    o.decode();
    for (std::int64_t h = 0; h < 2; ++h) {
      for (std::int64_t t = 0; t < 3; ++t) {
        const bool expected = h == 0 && t == 1;
        EXPECT_EQ(std::isnan(o.row(0, h, t)[0]), expected) << splits << " splits, head " << h << ", query " << t;
        EXPECT_EQ(std::isnan(lse[static_cast<std::size_t>(h * 3 + t)]), expected) << splits << " splits";
      }
    }
  }
}

TEST(Prefill, SequencesOfDifferentLengths) {
  CpuContext cpu;
  const HostTensor k = HostTensor::normal(2, 1, 90, 32, DType::fp32, 1);
  const HostTensor v = HostTensor::normal(2, 1, 90, 32, DType::fp32, 2);
  const HostTensor q = HostTensor::normal(2, 3, 7, 32, DType::fp32, 3);
  for (const std::int64_t page : {0, 32}) {
    KvCache cache(cpu.context, {2, 1, 32, 90, DType::fp32, page});
    cache.append(cpu.context, DType::fp32, k.from_row(0), v.from_row(0), std::array<std::int64_t, 2>{90, 8});
    HostTensor o(2, 3, 7, 32, DType::fp32);
    o.poison();
    std::vector<float> lse(2 * 3 * 7);
    const DecodeProblem problem{3, 7, DType::fp32};
    prefill_attention(cpu.context, problem, cache.view(), plan_prefill(Device::cpu(), problem, cache.view()),
                      q.from_row(0), o.operand(), lse.data());
    o.decode();
    for (std::int64_t b = 0; b < 2; ++b) {
      for (std::int64_t h = 0; h < 3; ++h) {
        for (std::int64_t t = 0; t < 7; ++t) {
          const auto expected = reference_row(q.row(b, h, t), k, v, b, 0, (b == 0 ? 90 : 8) - 7 + t + 1);
          for (std::int64_t c = 0; c < 32; ++c) {
            ASSERT_NEAR(o.row(b, h, t)[c], expected.o[static_cast<std::size_t>(c)], 1e-5);
          }
        }
      }
    }
  }
}

TEST(Prefill, RefusalsSayWhat) {
  CpuContext cpu;
  KvCache cache(cpu.context, {1, 1, 32, 90, DType::fp32});
  try {
    (void)plan_prefill(Device::cpu(), {1, 7, DType::fp32}, cache.view());
    FAIL();
  } catch (const KvCacheError& error) {
    EXPECT_STREQ(error.what(), "prefill: sequence 0 is empty: prefill it first");
  }
}

// --- the layer -----------------------------------------------------------------------------------------------------

struct Layer {
  CpuContext cpu;
  StreamingConfig config;
  StreamingWeights weights;

  explicit Layer(StreamingConfig c) : config(std::move(c)) {
    const std::int64_t width = config.d_model;
    const std::int64_t kv_width = config.num_kv_heads * (width / config.num_heads);
    std::uint32_t seed = 10;
    for (const auto& [tensor, rows] : {std::pair{&weights.q, width}, std::pair{&weights.k, kv_width},
                                       std::pair{&weights.v, kv_width}, std::pair{&weights.out, width}}) {
      const HostTensor values =
          HostTensor::normal(1, 1, rows, width, config.dtype, ++seed, 1 / std::sqrt(static_cast<float>(width)));
      *tensor = filled({rows, width}, values);
    }
  }
  Tensor filled(std::initializer_list<std::int64_t> shape, const HostTensor& values) const {
    Tensor tensor(cpu.context, shape, config.dtype);
    std::memcpy(tensor.data(), values.bytes.data(), values.bytes.size());
    return tensor;
  }
  /// Tokens [first, first + tokens) of the same endless input.
  Tensor input(std::int64_t first, std::int64_t tokens) const {
    const HostTensor all = HostTensor::normal(config.sequences, 1, 256, config.d_model, config.dtype, 77);
    HostTensor piece(config.sequences, 1, tokens, config.d_model, config.dtype);
    for (std::int64_t b = 0; b < config.sequences; ++b) {
      std::copy_n(all.row(b, 0, first), tokens * config.d_model, piece.values.begin() + b * tokens * config.d_model);
    }
    piece.encode();
    return filled({config.sequences, tokens, config.d_model}, piece);
  }
  [[nodiscard]] std::vector<float> values(const Tensor& t) const {
    std::vector<float> result(static_cast<std::size_t>(t.elements()));
    detail::row_ops(t.dtype()).to_float(t.data(), result.data(), t.elements());
    return result;
  }
  /// Rows [first, first + tokens) of a whole run of `length` tokens.
  std::vector<float> whole(std::int64_t length, std::int64_t first, std::int64_t tokens) const {
    StreamingConfig one_shot = config;
    one_shot.chunk = 0;
    StreamingAttention layer(cpu.context, one_shot, weights);
    const std::vector<float> all = values(layer.prefill(cpu.context, input(0, length)));
    std::vector<float> result;
    for (std::int64_t b = 0; b < config.sequences; ++b) {
      const auto from = all.begin() + (b * length + first) * config.d_model;
      result.insert(result.end(), from, from + tokens * config.d_model);
    }
    return result;
  }
};

void expect_near(const std::vector<float>& got, const std::vector<float>& want, float tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], tolerance) << i;
}

StreamingConfig notebook() {
  StreamingConfig config;
  config.sequences = 2;
  config.d_model = 64;
  config.num_heads = config.num_kv_heads = 4;
  config.max_tokens = 128;
  config.chunk = 3;
  return config;
}

TEST(StreamingAttention, ProjectsAttendsAndProjectsBack) {
  const Layer layer([] {
    StreamingConfig config = notebook();
    config.num_kv_heads = 2;
    return config;
  }());
  constexpr std::int64_t kTokens = 9, kWidth = 64, kDim = 16;
  const std::vector<float> x = layer.values(layer.input(0, kTokens));
  const auto linear = [](const std::vector<float>& in, const Tensor& weight) {
    const std::int64_t outputs = weight.size(0), inputs = weight.size(1);
    std::vector<float> out;
    for (std::size_t row = 0; row < in.size() / static_cast<std::size_t>(inputs); ++row) {
      for (std::int64_t i = 0; i < outputs; ++i) {
        double sum = 0;
        for (std::int64_t j = 0; j < inputs; ++j) {
          sum += static_cast<double>(in[row * static_cast<std::size_t>(inputs) + static_cast<std::size_t>(j)]) *
                 weight.data_as<float>()[i * inputs + j];
        }
        out.push_back(static_cast<float>(sum));
      }
    }
    return out;
  };
  const auto heads_first = [](const std::vector<float>& in, std::int64_t heads) {
    HostTensor t(2, heads, kTokens, kDim, DType::fp32);
    for (std::int64_t b = 0; b < 2; ++b) {
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t r = 0; r < kTokens; ++r) {
          std::copy_n(in.begin() + ((b * kTokens + r) * heads + h) * kDim, kDim,
                      t.values.begin() + ((b * heads + h) * kTokens + r) * kDim);
        }
      }
    }
    return t;
  };
  const HostTensor q = heads_first(linear(x, layer.weights.q), 4);
  const HostTensor k = heads_first(linear(x, layer.weights.k), 2);
  const HostTensor v = heads_first(linear(x, layer.weights.v), 2);
  std::vector<float> attended(2 * kTokens * kWidth);
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t h = 0; h < 4; ++h) {
      for (std::int64_t r = 0; r < kTokens; ++r) {
        const auto row = reference_row(q.row(b, h, r), k, v, b, h / 2, r + 1);
        for (std::int64_t c = 0; c < kDim; ++c) {
          attended[static_cast<std::size_t>((b * kTokens + r) * kWidth + h * kDim + c)] =
              static_cast<float>(row.o[static_cast<std::size_t>(c)]);
        }
      }
    }
  }
  StreamingAttention streaming(layer.cpu.context, layer.config, layer.weights);
  expect_near(layer.values(streaming.prefill(layer.cpu.context, layer.input(0, kTokens))),
              linear(attended, layer.weights.out), 1e-5f);
}

TEST(StreamingAttention, ChunksAreTheWholeForEverySize) {
  for (const std::int64_t page : {0, 16}) {
    StreamingConfig config = notebook();
    config.page_size = page;
    for (const std::int64_t chunk : {1, 2, 3, 4, 5, 7, 8, 9, 12}) {
      config.chunk = chunk;
      const Layer layer(config);
      StreamingAttention streaming(layer.cpu.context, config, layer.weights);
      expect_near(layer.values(streaming.prefill(layer.cpu.context, layer.input(0, 9))), layer.whole(9, 0, 9), 1e-5f);
    }
  }
}

TEST(StreamingAttention, AHundredDecodedTokensAreTheRowsOfTheWhole) {
  for (const bool grouped_paged : {false, true}) {
    StreamingConfig config = notebook();
    if (grouped_paged) {
      config.num_kv_heads = 1;
      config.page_size = 32;
    }
    const Layer layer(config);
    StreamingAttention streaming(layer.cpu.context, config, layer.weights);
    (void)streaming.prefill(layer.cpu.context, layer.input(0, 9));
    const std::vector<float> whole = layer.whole(109, 9, 100);
    for (std::int64_t t = 0; t < 100; ++t) {
      const std::vector<float> y = layer.values(streaming.decode(layer.cpu.context, layer.input(9 + t, 1)));
      for (std::int64_t b = 0; b < 2; ++b) {
        for (std::int64_t c = 0; c < 64; ++c) {
          ASSERT_NEAR(y[static_cast<std::size_t>(b * 64 + c)], whole[static_cast<std::size_t>((b * 100 + t) * 64 + c)],
                      1e-5)
              << "token " << t;
        }
      }
    }
    EXPECT_EQ(streaming.length(), 109);
  }
}

TEST(StreamingAttention, SeveralTokensAtOnceAndPromptsInPieces) {
  const Layer layer(notebook());
  StreamingAttention streaming(layer.cpu.context, layer.config, layer.weights);
  (void)streaming.prefill(layer.cpu.context, layer.input(0, 5));
  expect_near(layer.values(streaming.prefill(layer.cpu.context, layer.input(5, 6))), layer.whole(11, 5, 6), 1e-5f);
  expect_near(layer.values(streaming.decode(layer.cpu.context, layer.input(11, 8))), layer.whole(19, 11, 8), 1e-5f);
}

TEST(StreamingAttention, ResetForgets) {
  const Layer layer(notebook());
  StreamingAttention streaming(layer.cpu.context, layer.config, layer.weights);
  (void)streaming.prefill(layer.cpu.context, layer.input(50, 20));
  streaming.reset(layer.cpu.context);
  EXPECT_EQ(streaming.length(), 0);
  expect_near(layer.values(streaming.prefill(layer.cpu.context, layer.input(0, 9))), layer.whole(9, 0, 9), 1e-5f);
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const KvCacheError& error) {
    return error.what();
  }
  return "";
}

TEST(StreamingAttention, RefusalsSayWhat) {
  const Layer layer(notebook());
  StreamingAttention streaming(layer.cpu.context, layer.config, layer.weights);
  EXPECT_EQ(error_of([&] { (void)streaming.decode(layer.cpu.context, layer.input(0, 1)); }),
            "decode: nothing to go on from: prefill a prompt first");
  (void)streaming.prefill(layer.cpu.context, layer.input(0, 120));
  EXPECT_EQ(error_of([&] { (void)streaming.prefill(layer.cpu.context, layer.input(0, 9)); }),
            "prefill: the layer holds 120 of at most 128 tokens; 9 more do not fit");
  EXPECT_EQ(streaming.length(), 120);
  StreamingConfig uneven = notebook();
  uneven.num_heads = 3;
  EXPECT_NE(error_of([&] { StreamingAttention(layer.cpu.context, uneven, layer.weights); }).find("3 heads"),
            std::string::npos);
}

}  // namespace
}  // namespace warpmeter::attention
