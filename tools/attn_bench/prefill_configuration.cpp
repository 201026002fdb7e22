#include "kernels/attention/registry.hpp"
#include "tools/attn_bench/prefill_case.hpp"

namespace warpmeter::attn_bench {

attention::AttentionProblem PrefillConfiguration::problem() const {
  attention::AttentionProblem p;
  p.batch = batch;
  p.num_heads = num_heads;
  p.num_kv_heads = num_kv_heads;
  p.seq_len = seq_len;
  p.kv_len = seq_len;
  p.head_dim = head_dim;
  p.dtype = dtype;
  p.causal = true;
  return p;
}

attention::KvCacheConfig PrefillConfiguration::cache() const {
  attention::KvCacheConfig config;
  config.sequences = batch;
  config.num_kv_heads = num_kv_heads;
  config.head_dim = head_dim;
  config.capacity = seq_len;
  config.dtype = storage_of(dtype);
  config.page_size = page_size;
  return config;
}

std::vector<PrefillConfiguration> expand_prefill(const harness::OptionTable& table, const harness::Settings& settings) {
  constexpr std::int64_t kMaxLength = (std::int64_t{1} << 31) - 1;
  constexpr std::int64_t kMaxCount = std::int64_t{1} << 24;
  const auto impls = table.words("--impl", attention::known_implementation_names(), true);
  const auto d_models = table.integers("--d-model", 1, kMaxLength);
  const bool by_head_dim = !table.text("--head-dim").empty();
  const auto heads_or_dims =
      by_head_dim ? table.integers("--head-dim", 1, 256) : table.integers("--heads", 1, kMaxCount);
  std::vector<std::int64_t> kv_heads_list{0};
  if (!table.text("--kv-heads").empty()) kv_heads_list = table.integers("--kv-heads", 1, kMaxCount);
  const auto batches = table.integers("--batch", 1, kMaxCount);
  const auto seq_lens = table.integers("--seq-len", 1, kMaxLength);
  const auto chunks = table.integers("--chunk", 1, kMaxLength);
  const auto pages = table.integers("--page-size", 0, 256);

  std::vector<PrefillConfiguration> configurations;
  PrefillConfiguration c;
  c.projections = table.flag("--projections");
  const auto add_lengths = [&] {
    for (const std::int64_t page : pages) {
      for (const std::int64_t seq_len : seq_lens) {
        for (const std::int64_t chunk : chunks) {
          c.page_size = page;
          c.seq_len = seq_len;
          c.chunk = chunk;
          if (const std::string reason = invalid_reason(c.cache()); !reason.empty()) {
            throw table.error("--page-size", std::to_string(page), reason);
          }
          if (const std::string reason = invalid_reason(c.problem()); !reason.empty()) {
            throw harness::UsageError("prefill " + describe(c.problem()) + ": " + reason);
          }
          configurations.push_back(c);
        }
      }
    }
  };
  for (const std::string& impl : impls) {
    for (const DType dtype : settings.dtypes) {
      for (const std::int64_t d_model : d_models) {
        for (const std::int64_t heads_or_dim : heads_or_dims) {
          if (d_model % heads_or_dim != 0) {
            throw table.error(by_head_dim ? "--head-dim" : "--heads",
                              std::to_string(heads_or_dim) + " does not divide --d-model " + std::to_string(d_model));
          }
          c.impl = impl;
          c.dtype = dtype;
          c.num_heads = by_head_dim ? d_model / heads_or_dim : heads_or_dim;
          c.head_dim = d_model / c.num_heads;
          if (c.head_dim > 256) {
            throw table.error("--d-model", std::to_string(d_model) + " over " + std::to_string(c.num_heads) +
                                               " heads gives head_dim " + std::to_string(c.head_dim) +
                                               ", and head_dim is at most 256: raise --heads");
          }
          for (const std::int64_t kv_heads : kv_heads_list) {
            c.num_kv_heads = kv_heads == 0 ? c.num_heads : kv_heads;
            if (c.num_heads % c.num_kv_heads != 0) {
              throw table.error("--kv-heads", std::to_string(c.num_kv_heads) + " does not divide the " +
                                                  std::to_string(c.num_heads) + " query heads");
            }
            for (const std::int64_t batch : batches) {
              c.batch = batch;
              add_lengths();
            }
          }
        }
      }
    }
  }
  return configurations;
}

}  // namespace warpmeter::attn_bench
