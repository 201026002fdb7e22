#pragma once

#include <cstdint>

#include "kernels/attention/kv_cache.hpp"
#include "kernels/attention/prefill.hpp"
#include "kernels/runtime/tensor.hpp"

namespace warpmeter::attention {

/// One attention layer as a server keeps it: projections, a KV cache, chunked prefill and decoding.
struct StreamingConfig {
  std::int64_t sequences = 1;
  std::int64_t d_model = 64;  ///< num_heads x head_dim
  std::int64_t num_heads = 1;
  std::int64_t num_kv_heads = 1;
  std::int64_t max_tokens = 1;      ///< a sequence may reach
  DType dtype = DType::fp32;        ///< of inputs, weights and outputs: fp32, bf16 or fp16
  DType cache_dtype = DType::fp32;  ///< of the KV cache
  std::int64_t page_size = 0;       ///< of the cache; 0: contiguous
  std::int64_t chunk = 0;           ///< prompt tokens worked on at once; 0: the whole prompt
  PrefillOptions prefill;
  DecodeOptions decode;
};

/// Weights as torch.nn.Linear has them, (outputs, inputs), without biases: y = x W^T.
struct StreamingWeights {
  Tensor q;    ///< (num_heads * head_dim, d_model)
  Tensor k;    ///< (num_kv_heads * head_dim, d_model)
  Tensor v;    ///< (num_kv_heads * head_dim, d_model)
  Tensor out;  ///< (d_model, num_heads * head_dim)
};

/// y = softmax(q k^T / sqrt(head_dim) + causal) v projected, over tokens that come piece by piece; all sequences of a
/// layer have the same length. Not thread-safe.
class StreamingAttention {
 public:
  /// The weights are shared, not copied. Throws KvCacheError for a config that cannot be, OutOfMemory.
  StreamingAttention(const Context& context, const StreamingConfig& config, StreamingWeights weights);

  /// x: (sequences, tokens, d_model); returns outputs of the same shape. The prompt, or more of it, in chunks: memory
  /// beside input, output and cache is a chunk's. Throws KvCacheError when the cache would overflow, and then nothing
  /// has changed.
  [[nodiscard]] Tensor prefill(const Context& context, const Tensor& x);
  /// The next token, or a few, of every sequence. Throws KvCacheError before a prefill.
  [[nodiscard]] Tensor decode(const Context& context, const Tensor& x);
  void reset(const Context& context) { cache_.reset(context); }

  [[nodiscard]] std::int64_t length() const { return cache_.length(0); }
  [[nodiscard]] const KvCache& cache() const { return cache_; }
  [[nodiscard]] const StreamingConfig& config() const { return config_; }

 private:
  [[nodiscard]] std::int64_t head_dim() const { return config_.d_model / config_.num_heads; }
  [[nodiscard]] std::int64_t check_input(const Tensor& x, const char* what) const;
  void step(const Context& context, const Tensor& x, const Tensor& y, std::int64_t first, std::int64_t tokens,
            bool decoding);

  StreamingConfig config_;
  StreamingWeights weights_;
  KvCache cache_;
};

}  // namespace warpmeter::attention
