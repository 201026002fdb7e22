#include "kernels/attention/kv_cache.hpp"

#include <algorithm>
#include <array>
#include <numeric>

#include "kernels/attention/detail/kv_append.hpp"
#include "kernels/attention/detail/parallel_work.hpp"
#include "kernels/attention/detail/row_ops.hpp"
#include "kernels/runtime/annotate.hpp"
#include "kernels/runtime/check.hpp"

namespace warpmeter::attention {

namespace {

constexpr std::int64_t kMostTokens = std::int64_t{1} << 31;

std::int64_t pages_for(std::int64_t tokens, std::int64_t page_size) {
  return (tokens + page_size - 1) / page_size;
}

/// Pages a sequence may have, and in the pool.
std::int64_t pages_a_sequence(const KvCacheConfig& config) {
  return config.page_size == 0 ? 1 : pages_for(config.capacity, config.page_size);
}
std::int64_t pages_in_pool(const KvCacheConfig& config) {
  if (config.page_size != 0 && config.pages != 0) return config.pages;
  return config.sequences * pages_a_sequence(config);
}
std::int64_t rows_a_page(const KvCacheConfig& config) {
  return config.page_size == 0 ? config.capacity : config.page_size;
}

std::string of_sequence(std::int64_t sequence) {
  return "sequence " + std::to_string(sequence);
}

std::size_t rounded(std::size_t bytes) {
  constexpr std::size_t kRounding = 512;  // the allocator's
  return (bytes + kRounding - 1) / kRounding * kRounding;
}

}  // namespace

std::string invalid_reason(const KvCacheConfig& config) {
  if (config.sequences < 1) return "sequences must be at least 1, not " + std::to_string(config.sequences);
  if (config.num_kv_heads < 1) return "num_kv_heads must be at least 1, not " + std::to_string(config.num_kv_heads);
  if (config.head_dim < 1 || config.head_dim > 256) {
    return "head_dim must be from 1 to 256, not " + std::to_string(config.head_dim);
  }
  if (config.capacity < 1 || config.capacity >= kMostTokens) {
    return "capacity must be from 1 to 2^31 - 1 tokens, not " + std::to_string(config.capacity);
  }
  if (config.dtype != DType::fp32 && !is_16bit(config.dtype)) {
    return "a cache holds fp32, bf16 or fp16, not " + std::string(name(config.dtype));
  }
  const std::int64_t page = config.page_size;
  if (page != 0 && (page < 16 || page > 256 || (page & (page - 1)) != 0)) {
    return "page_size must be 16, 32, 64, 128 or 256, or 0 for contiguous, not " + std::to_string(page);
  }
  if (config.pages < 0 || config.pages >= kMostTokens) {
    return "pages must be from 0 to 2^31 - 1, not " + std::to_string(config.pages);
  }
  if (page == 0 && config.pages != 0) return "a contiguous cache has no pages";
  return "";
}

std::int64_t KvView::longest() const {
  std::int64_t most = 0;
  for (const std::int64_t length : host_lengths) most = std::max(most, length);
  return most;
}
std::int64_t KvView::total_tokens() const {
  return std::accumulate(host_lengths.begin(), host_lengths.end(), std::int64_t{0});
}
double KvView::bytes() const {
  return 2.0 * static_cast<double>(total_tokens()) * static_cast<double>(num_kv_heads * head_dim) *
         static_cast<double>(size_of(dtype));
}

std::optional<std::string> unsupported(DeviceKind device, const KvCacheConfig& config) {
  if (device == DeviceKind::cpu) return std::nullopt;
#if WARPMETER_CUDA_DECODE
  constexpr std::int64_t kMost = 65535;
  const auto too_many = [&](std::int64_t count, const char* what) {
    return std::to_string(count) + " " + what + " are more than the " + std::to_string(kMost) + " of a grid on CUDA";
  };
  if (config.sequences > kMost) return too_many(config.sequences, "sequences");
  if (config.num_kv_heads > kMost) return too_many(config.num_kv_heads, "key/value heads");
  return std::nullopt;
#else
  static_cast<void>(config);
  return "a KV cache is not in this build for CUDA";
#endif
}

KvCache::KvCache(const Context& context, const KvCacheConfig& config) : config_(config) {
  if (const std::string reason = invalid_reason(config); !reason.empty()) throw KvCacheError("KV cache: " + reason);
  if (const auto reason = unsupported(context.device().kind, config)) throw KvCacheError("KV cache: " + *reason);
  pages_a_sequence_ = pages_a_sequence(config);
  const std::int64_t pool = pages_in_pool(config);
  k_ = Tensor(context, {pool, config.num_kv_heads, rows_a_page(config), config.head_dim}, config.dtype);
  v_ = Tensor(context, {pool, config.num_kv_heads, rows_a_page(config), config.head_dim}, config.dtype);
  k_.fill_bytes(0, context.stream);
  v_.fill_bytes(0, context.stream);
  device_pages_ = Tensor(context, {config.sequences, pages_a_sequence_}, DType::int32);
  device_lengths_ = Tensor(context, {2, config.sequences}, DType::int32);  // lengths, tokens of the last append
  lengths_.assign(static_cast<std::size_t>(config.sequences), 0);
  pages_.assign(static_cast<std::size_t>(config.sequences * pages_a_sequence_), 0);
  if (config.page_size == 0) {
    std::iota(pages_.begin(), pages_.end(), 0);
  } else {
    free_.resize(static_cast<std::size_t>(pool));
    std::iota(free_.rbegin(), free_.rend(), 0);
  }
  publish(context);
}

std::size_t KvCache::bytes(const KvCacheConfig& config) {
  const auto elements = static_cast<std::size_t>(pages_in_pool(config) * config.num_kv_heads) *
                        static_cast<std::size_t>(rows_a_page(config) * config.head_dim);
  const auto sequences = static_cast<std::size_t>(config.sequences);
  return 2 * rounded(elements * size_of(config.dtype)) +
         rounded(sequences * static_cast<std::size_t>(pages_a_sequence(config)) * 4) + rounded(2 * sequences * 4);
}

void KvCache::check_sequence(std::int64_t sequence) const {
  if (sequence >= 0 && sequence < config_.sequences) return;
  throw KvCacheError("KV cache: there is no " + of_sequence(sequence) + ", only 0 to " +
                     std::to_string(config_.sequences - 1));
}

std::int64_t KvCache::length(std::int64_t sequence) const {
  check_sequence(sequence);
  return lengths_[static_cast<std::size_t>(sequence)];
}

void KvCache::publish(const Context& context) {
  std::vector<std::int32_t> lengths(lengths_.begin(), lengths_.end());
  copy_bytes(device_lengths_.data(), device_lengths_.device(), lengths.data(), Device::cpu(), lengths.size() * 4,
             context.stream);
  copy_bytes(device_pages_.data(), device_pages_.device(), pages_.data(), Device::cpu(), pages_.size() * 4,
             context.stream);
}

void KvCache::append(const Context& context, DType dtype, const ConstOperand& k, const ConstOperand& v,
                     std::int64_t tokens) {
  append(context, dtype, k, v, std::vector<std::int64_t>(static_cast<std::size_t>(config_.sequences), tokens));
}

void KvCache::append(const Context& context, DType dtype, const ConstOperand& k, const ConstOperand& v,
                     std::span<const std::int64_t> tokens) {
  const Range range("KV_CACHE_APPEND");
  if (dtype != DType::fp32 && !is_16bit(dtype)) {
    throw KvCacheError("KV cache: fp32, bf16 or fp16 rows can be appended, not " + std::string(name(dtype)));
  }
  if (static_cast<std::int64_t>(tokens.size()) != config_.sequences) {
    throw KvCacheError("KV cache: token counts of " + std::to_string(tokens.size()) +
                       " sequences given for a cache of " + std::to_string(config_.sequences));
  }
  std::int64_t wanted_pages = 0;
  for (std::int64_t b = 0; b < config_.sequences; ++b) {
    const std::int64_t held = lengths_[static_cast<std::size_t>(b)];
    const std::int64_t more = tokens[static_cast<std::size_t>(b)];
    if (more < 0) throw KvCacheError("KV cache: " + std::to_string(more) + " tokens for " + of_sequence(b));
    if (more > config_.capacity - held) {
      throw KvCacheError("KV cache: " + of_sequence(b) + " holds " + std::to_string(held) + " of at most " +
                         std::to_string(config_.capacity) + " tokens; " + std::to_string(more) + " more do not fit");
    }
    if (config_.page_size != 0) {
      wanted_pages += pages_for(held + more, config_.page_size) - pages_for(held, config_.page_size);
    }
  }
  if (wanted_pages > free_pages()) {
    throw KvCacheError("KV cache: " + std::to_string(wanted_pages) + " more pages wanted, " +
                       std::to_string(free_pages()) + " of " + std::to_string(pages_in_pool(config_)) + " free");
  }

  std::vector<std::int32_t> counts;
  std::int64_t most = 0;
  for (std::int64_t b = 0; b < config_.sequences; ++b) {
    std::int64_t& length = lengths_[static_cast<std::size_t>(b)];
    const std::int64_t more = tokens[static_cast<std::size_t>(b)];
    if (config_.page_size != 0) {
      std::int32_t* const table = pages_.data() + b * pages_a_sequence_;
      for (std::int64_t p = pages_for(length, config_.page_size); p < pages_for(length + more, config_.page_size);
           ++p) {
        table[p] = free_.back();
        free_.pop_back();
      }
    }
    length += more;
    most = std::max(most, more);
    counts.push_back(static_cast<std::int32_t>(more));
  }
  publish(context);
  if (most == 0) return;

  const KvView to = view();
  detail::KvAppend rows;
  rows.from = dtype;
  rows.to = config_.dtype;
  rows.k = k;
  rows.v = v;
  rows.cache_k = k_.data();
  rows.cache_v = v_.data();
  rows.batch = to.batch;
  rows.heads = to.num_kv_heads;
  rows.head_dim = to.head_dim;
  rows.page_size = to.page_size;
  rows.page_stride = to.page_stride;
  rows.head_stride = to.head_stride;
  rows.row_stride = to.row_stride;
  rows.pages = to.pages;
  rows.pages_stride = to.pages_stride;
  rows.lengths = to.lengths;
  rows.tokens = tokens.data();
  rows.most_tokens = most;
  if (context.device().is_cpu()) {
    detail::kv_append_cpu(rows);
    return;
  }
#if WARPMETER_CUDA_DECODE
  std::int32_t* const device_counts = static_cast<std::int32_t*>(device_lengths_.data()) + config_.sequences;
  copy_bytes(device_counts, device_lengths_.device(), counts.data(), Device::cpu(), counts.size() * 4, context.stream);
  rows.device_tokens = device_counts;
  detail::kv_append_cuda(context, rows);
#else
  WM_CHECK(false, "this build has no CUDA caches");
#endif
}

void KvCache::truncate(const Context& context, std::int64_t sequence, std::int64_t length) {
  check_sequence(sequence);
  std::int64_t& held = lengths_[static_cast<std::size_t>(sequence)];
  if (length < 0 || length > held) {
    throw KvCacheError("KV cache: " + of_sequence(sequence) + " holds " + std::to_string(held) +
                       " tokens and cannot be cut to " + std::to_string(length));
  }
  if (config_.page_size != 0) {
    const std::int32_t* const table = pages_.data() + sequence * pages_a_sequence_;
    for (std::int64_t p = pages_for(length, config_.page_size); p < pages_for(held, config_.page_size); ++p) {
      free_.push_back(table[p]);
    }
    std::sort(free_.begin(), free_.end(), std::greater<>());
  }
  held = length;
  publish(context);
}

void KvCache::reset(const Context& context, std::int64_t sequence) {
  truncate(context, sequence, 0);
}

void KvCache::reset(const Context& context) {
  for (std::int64_t b = 0; b < config_.sequences; ++b) truncate(context, b, 0);
}

KvView KvCache::view() const {
  KvView view;
  view.k = k_.data();
  view.v = v_.data();
  view.dtype = config_.dtype;
  view.batch = config_.sequences;
  view.num_kv_heads = config_.num_kv_heads;
  view.head_dim = config_.head_dim;
  view.page_size = rows_a_page(config_);
  view.row_stride = config_.head_dim;
  view.head_stride = view.page_size * view.row_stride;
  view.page_stride = config_.num_kv_heads * view.head_stride;
  view.page_count = pages_in_pool(config_);
  view.pages = static_cast<const std::int32_t*>(device_pages_.data());
  view.pages_stride = pages_a_sequence_;
  view.lengths = static_cast<const std::int32_t*>(device_lengths_.data());
  view.host_lengths = lengths_;
  view.paged = config_.page_size != 0;
  return view;
}

namespace detail {

void kv_append_cpu(const KvAppend& append) {
  const RowOps& from = row_ops(append.from);
  const RowOps& to = row_ops(append.to);
  const auto source_bytes = static_cast<std::int64_t>(size_of(append.from));
  const auto cache_bytes = static_cast<std::int64_t>(size_of(append.to));
  const double nanoseconds = 0.5 * static_cast<double>(append.most_tokens * append.head_dim);
  parallel_for_work(append.batch * append.heads, nanoseconds, [&](std::int64_t index, int) {
    const std::int64_t b = index / append.heads;
    const std::int64_t h = index % append.heads;
    const std::int64_t tokens = append.tokens[b];
    const std::int64_t first = append.lengths[b] - tokens;
    std::array<float, 256> row;
    const auto copy = [&](const ConstOperand& source, void* cache) {
      for (std::int64_t t = 0; t < tokens; ++t) {
        const std::int64_t position = first + t;
        const std::int64_t page = append.pages[b * append.pages_stride + position / append.page_size];
        const std::int64_t at =
            page * append.page_stride + h * append.head_stride + position % append.page_size * append.row_stride;
        const std::int64_t in = b * source.batch_stride + h * source.head_stride + t * source.row_stride;
        from.to_float(static_cast<const char*>(source.data) + in * source_bytes, row.data(), append.head_dim);
        to.from_float(row.data(), static_cast<char*>(cache) + at * cache_bytes, append.head_dim);
      }
    };
    copy(append.k, append.cache_k);
    copy(append.v, append.cache_v);
  });
}

}  // namespace detail

}  // namespace warpmeter::attention
