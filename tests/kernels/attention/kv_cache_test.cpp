#include "kernels/attention/kv_cache.hpp"

#include <gtest/gtest.h>

#include "kernels/attention/decode.hpp"
#include "tests/kernels/attention/serving_reference.hpp"

namespace warpmeter::attention {
namespace {

using serving_test::CpuContext;
using serving_test::HostTensor;

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const KvCacheError& error) {
    return error.what();
  }
  return "";
}

/// Row `token` of a head as the view addresses it, in fp32.
std::vector<float> cached_row(const KvView& view, const void* of, std::int64_t b, std::int64_t h, std::int64_t token) {
  const std::int64_t page = view.pages[b * view.pages_stride + token / view.page_size];
  const std::int64_t at = page * view.page_stride + h * view.head_stride + token % view.page_size * view.row_stride;
  std::vector<float> row(static_cast<std::size_t>(view.head_dim));
  detail::row_ops(view.dtype)
      .to_float(static_cast<const char*>(of) + at * static_cast<std::int64_t>(size_of(view.dtype)), row.data(),
                view.head_dim);
  return row;
}

void expect_rows(const KvView& view, const HostTensor& k, const HostTensor& v, std::int64_t b, std::int64_t tokens) {
  for (std::int64_t h = 0; h < view.num_kv_heads; ++h) {
    for (std::int64_t t = 0; t < tokens; ++t) {
      ASSERT_EQ(cached_row(view, view.k, b, h, t), std::vector<float>(k.row(b, h, t), k.row(b, h, t) + view.head_dim));
      ASSERT_EQ(cached_row(view, view.v, b, h, t), std::vector<float>(v.row(b, h, t), v.row(b, h, t) + view.head_dim));
    }
  }
}

TEST(KvCache, KeepsWhatWasAppendedContiguousAndPaged) {
  CpuContext cpu;
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    const HostTensor k = HostTensor::normal(3, 2, 70, 20, dtype, 1);
    const HostTensor v = HostTensor::normal(3, 2, 70, 20, dtype, 2);
    for (const std::int64_t page : {0, 16, 32}) {
      KvCache cache(cpu.context, {3, 2, 20, 100, dtype, page});
      // Ragged pieces: the sequences grow by different amounts, past page borders.
      std::int64_t held[3] = {0, 0, 0};
      for (const std::array<std::int64_t, 3>& more :
           {std::array<std::int64_t, 3>{5, 0, 33}, {17, 1, 0}, {40, 16, 37}}) {
        for (std::int64_t b = 0; b < 3; ++b) {
          std::array<std::int64_t, 3> one{0, 0, 0};
          one[static_cast<std::size_t>(b)] = more[static_cast<std::size_t>(b)];
          cache.append(cpu.context, dtype, k.from_row(held[b]), v.from_row(held[b]), one);
          held[b] += more[static_cast<std::size_t>(b)];
          ASSERT_EQ(cache.length(b), held[b]);
        }
      }
      for (std::int64_t b = 0; b < 3; ++b) expect_rows(cache.view(), k, v, b, held[b]);
      EXPECT_EQ(cache.view().longest(), 70);
      EXPECT_EQ(cache.view().page_count, page == 0 ? 3 : page == 16 ? 3 * 7 : 3 * 4);
      EXPECT_EQ(cache.view().total_tokens(), 62 + 17 + 70);
    }
  }
}

TEST(KvCache, RoundsToItsOwnType) {
  CpuContext cpu;
  HostTensor k = HostTensor::normal(1, 1, 9, 8, DType::fp32, 3);
  HostTensor v = HostTensor::normal(1, 1, 9, 8, DType::fp32, 4);
  KvCache cache(cpu.context, {1, 1, 8, 9, DType::bf16});
  cache.append(cpu.context, DType::fp32, k.from_row(0), v.from_row(0), 9);
  HostTensor rounded_k(1, 1, 9, 8, DType::bf16), rounded_v(1, 1, 9, 8, DType::bf16);
  rounded_k.values = k.values;
  rounded_v.values = v.values;
  rounded_k.encode();
  rounded_v.encode();
  expect_rows(cache.view(), rounded_k, rounded_v, 0, 9);
}

TEST(KvCache, PagesComeFromAPoolAndGoBack) {
  CpuContext cpu;
  const HostTensor k = HostTensor::normal(2, 1, 64, 4, DType::fp32, 5);
  KvCache cache(cpu.context, {2, 1, 4, 64, DType::fp32, 16, 5});
  EXPECT_EQ(cache.free_pages(), 5);
  cache.append(cpu.context, DType::fp32, k.from_row(0), k.from_row(0), std::array<std::int64_t, 2>{33, 16});
  EXPECT_EQ(cache.free_pages(), 1);
  EXPECT_EQ(cache.view().page_count, 5);
  const std::string full = error_of([&] {
    cache.append(cpu.context, DType::fp32, k.from_row(0), k.from_row(0), std::array<std::int64_t, 2>{16, 1});
  });
  EXPECT_NE(full.find("2 more pages wanted, 1 of 5 free"), std::string::npos) << full;
  EXPECT_EQ(cache.length(0), 33);
  EXPECT_EQ(cache.free_pages(), 1);
  cache.truncate(cpu.context, 0, 16);
  EXPECT_EQ(cache.free_pages(), 3);
  cache.append(cpu.context, DType::fp32, k.from_row(16), k.from_row(16), std::array<std::int64_t, 2>{0, 48});
  expect_rows(cache.view(), k, k, 0, 16);
  EXPECT_EQ(cache.free_pages(), 0);
  cache.reset(cpu.context);
  EXPECT_EQ(cache.free_pages(), 5);
  EXPECT_EQ(cache.length(1), 0);
}

TEST(KvCache, RefusalsNameTheSequenceAndTheNumbers) {
  CpuContext cpu;
  const HostTensor k = HostTensor::normal(2, 1, 20, 4, DType::fp32, 6);
  KvCache cache(cpu.context, {2, 1, 4, 10, DType::fp32});
  cache.append(cpu.context, DType::fp32, k.from_row(0), k.from_row(0), std::array<std::int64_t, 2>{3, 8});
  EXPECT_EQ(error_of([&] { cache.append(cpu.context, DType::fp32, k.from_row(0), k.from_row(0), 3); }),
            "KV cache: sequence 1 holds 8 of at most 10 tokens; 3 more do not fit");
  EXPECT_EQ(cache.length(0), 3);  // nothing of it happened
  EXPECT_EQ(error_of([&] {
              cache.append(cpu.context, DType::fp32, k.from_row(0), k.from_row(0), std::array<std::int64_t, 1>{1});
            }),
            "KV cache: token counts of 1 sequences given for a cache of 2");
  EXPECT_EQ(error_of([&] { (void)cache.length(2); }), "KV cache: there is no sequence 2, only 0 to 1");
  EXPECT_EQ(error_of([&] { cache.truncate(cpu.context, 0, 4); }),
            "KV cache: sequence 0 holds 3 tokens and cannot be cut to 4");
  EXPECT_NE(error_of([&] { cache.append(cpu.context, DType::int32, k.from_row(0), k.from_row(0), 1); }).find("int32"),
            std::string::npos);
}

TEST(KvCache, InvalidConfigsSayWhichField) {
  CpuContext cpu;
  const auto reason = [](const KvCacheConfig& config) { return invalid_reason(config); };
  EXPECT_EQ(reason({1, 1, 64, 128, DType::fp32, 16}), "");
  EXPECT_NE(reason({0, 1, 64, 128}).find("sequences"), std::string::npos);
  EXPECT_NE(reason({1, 0, 64, 128}).find("num_kv_heads"), std::string::npos);
  EXPECT_NE(reason({1, 1, 257, 128}).find("head_dim"), std::string::npos);
  EXPECT_NE(reason({1, 1, 64, 0}).find("capacity"), std::string::npos);
  EXPECT_NE(reason({1, 1, 64, 128, DType::tf32}).find("tf32"), std::string::npos);
  for (const std::int64_t page : {1, 8, 17, 48, 512}) {
    EXPECT_NE(reason({1, 1, 64, 128, DType::fp32, page}).find("page_size"), std::string::npos) << page;
  }
  EXPECT_NE(reason({1, 1, 64, 128, DType::fp32, 0, 4}).find("contiguous"), std::string::npos);
  EXPECT_THROW(KvCache(cpu.context, {1, 1, 64, 128, DType::fp32, 17}), KvCacheError);
}

TEST(KvCache, WhatADeviceHasNoRoomForInItsGridIsUnsupported) {
  const auto reason = [](DeviceKind device, std::int64_t sequences, std::int64_t heads) {
    return unsupported(device, {sequences, heads, 64, 128}).value_or("");
  };
  EXPECT_EQ(reason(DeviceKind::cpu, 65536, 65536), "");
  if (!decodes_on_cuda()) {
    EXPECT_NE(reason(DeviceKind::cuda, 1, 1).find("not in this build"), std::string::npos);
    return;
  }
  EXPECT_EQ(reason(DeviceKind::cuda, 65535, 65535), "");
  EXPECT_NE(reason(DeviceKind::cuda, 65536, 1).find("65536 sequences"), std::string::npos);
  EXPECT_NE(reason(DeviceKind::cuda, 1, 65536).find("65536 key/value heads"), std::string::npos);
}

TEST(KvCache, TakesTheBytesThatItSays) {
  CpuContext cpu;
  for (const KvCacheConfig& config :
       {KvCacheConfig{3, 2, 20, 100, DType::fp32}, KvCacheConfig{3, 2, 20, 100, DType::bf16, 32},
        KvCacheConfig{3, 2, 20, 100, DType::fp16, 16, 4}}) {
    const KvCache cache(cpu.context, config);
    EXPECT_EQ(cpu.allocator.stats().current.allocated, KvCache::bytes(config));
  }
}

}  // namespace
}  // namespace warpmeter::attention
