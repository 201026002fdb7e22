#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/attention/problem.hpp"
#include "kernels/runtime/tensor.hpp"

namespace warpmeter::attention {

/// A cache asked for what it cannot do: more tokens than it has room for, a sequence that it does not have, decoding
/// before a prefill. The message names the sequence and the numbers.
class KvCacheError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What a cache is made for.
struct KvCacheConfig {
  std::int64_t sequences = 1;
  std::int64_t num_kv_heads = 1;
  std::int64_t head_dim = 64;
  std::int64_t capacity = 1;   ///< tokens a sequence may reach
  DType dtype = DType::fp32;   ///< of what is kept: fp32, bf16 or fp16
  std::int64_t page_size = 0;  ///< tokens a page, 16 to 256 and a power of two; 0: contiguous
  std::int64_t pages = 0;      ///< in the pool of a paged cache; 0: enough for every sequence at capacity
};

/// "" when a cache of it can be made, else what is wrong with which field.
[[nodiscard]] std::string invalid_reason(const KvCacheConfig& config);
/// Why such a cache, valid in itself, cannot be on devices of this kind; nullopt when it can. On CUDA sequences and
/// key/value heads are two dimensions of a grid, at most 65535 each.
[[nodiscard]] std::optional<std::string> unsupported(DeviceKind device, const KvCacheConfig& config);

/// Keys and values of several sequences as kernels read them; borrowed from a KvCache, valid until that changes.
///
/// Token t of sequence b lies in page pages[b * pages_stride + t / page_size], row t % page_size; head h of that page
/// starts at page * page_stride + h * head_stride, its rows are row_stride apart and head_dim long (elements).
/// Contiguous memory is the case of one page a sequence.
struct KvView {
  const void* k = nullptr;
  const void* v = nullptr;
  DType dtype = DType::fp32;
  std::int64_t batch = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t page_size = 0;
  std::int64_t page_stride = 0, head_stride = 0, row_stride = 0;
  std::int64_t page_count = 0;            ///< pages of the pool, those of no sequence too; 0: not known
  const std::int32_t* pages = nullptr;    ///< on the cache's device
  std::int64_t pages_stride = 0;          ///< of a sequence
  const std::int32_t* lengths = nullptr;  ///< tokens of each sequence, on the cache's device
  std::span<const std::int64_t> host_lengths;
  bool paged = false;

  [[nodiscard]] std::int64_t longest() const;
  [[nodiscard]] std::int64_t total_tokens() const;
  /// Bytes of the keys and values that one decoding step reads.
  [[nodiscard]] double bytes() const;
};

/// The keys and values of earlier tokens, a sequence at a time, on one device.
///
/// Layout: contiguous (sequence, kv head, capacity, head_dim); paged (page, kv head, page_size, head_dim), so that the
/// rows of a page's head are one piece. Pages are taken from the pool as sequences grow, the lowest free one first,
/// and go back with reset(). Rows that hold no token are zero when the cache is made: nothing reads them as data, and
/// no kernel that loads whole tiles meets a NaN there.
///
/// On CUDA every call enqueues on the context's stream. Not thread-safe. Throws KvCacheError, and then has changed
/// nothing.
class KvCache {
 public:
  /// Throws KvCacheError for an invalid or unsupported config, OutOfMemory.
  KvCache(const Context& context, const KvCacheConfig& config);
  KvCache(KvCache&&) noexcept = default;
  KvCache& operator=(KvCache&&) noexcept = default;

  [[nodiscard]] const KvCacheConfig& config() const { return config_; }
  [[nodiscard]] std::int64_t length(std::int64_t sequence) const;
  [[nodiscard]] std::span<const std::int64_t> lengths() const { return lengths_; }
  [[nodiscard]] std::int64_t free_pages() const { return static_cast<std::int64_t>(free_.size()); }

  /// Appends tokens[b] tokens to each sequence b: rows [0, tokens[b]) of entry b of `k` and `v`, operands of shape
  /// (sequences, num_kv_heads, max tokens, head_dim) in `dtype` (fp32, bf16, fp16), rounded to the cache's type.
  void append(const Context& context, DType dtype, const ConstOperand& k, const ConstOperand& v,
              std::span<const std::int64_t> tokens);
  /// The same number for every sequence.
  void append(const Context& context, DType dtype, const ConstOperand& k, const ConstOperand& v, std::int64_t tokens);

  void reset(const Context& context);  ///< every sequence is empty
  void reset(const Context& context, std::int64_t sequence);
  /// Forgets the tokens from `length` on (speculative tokens that were refused).
  void truncate(const Context& context, std::int64_t sequence, std::int64_t length);

  [[nodiscard]] KvView view() const;
  /// Allocated bytes of a cache of this config, each block rounded to the allocator's 512 B.
  [[nodiscard]] static std::size_t bytes(const KvCacheConfig& config);

 private:
  void check_sequence(std::int64_t sequence) const;
  void publish(const Context& context);  ///< lengths and page tables to the device

  KvCacheConfig config_;
  std::int64_t pages_a_sequence_ = 1;
  Tensor k_, v_, device_pages_, device_lengths_;
  std::vector<std::int64_t> lengths_;
  std::vector<std::int32_t> pages_;  // (sequences, pages_a_sequence_)
  std::vector<std::int32_t> free_;   // descending
};

}  // namespace warpmeter::attention
