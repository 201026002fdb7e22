#include "tools/attn_bench/serving_shape.hpp"

#include <string>

namespace warpmeter::attn_bench {

attention::AttentionProblem ServingShape::attention_of(std::int64_t seq_len, std::int64_t kv_len) const {
  attention::AttentionProblem p;
  p.batch = batch;
  p.num_heads = num_heads;
  p.num_kv_heads = num_kv_heads;
  p.seq_len = seq_len;
  p.kv_len = kv_len;
  p.head_dim = head_dim;
  p.dtype = dtype;
  p.causal = true;
  return p;
}

attention::KvCacheConfig ServingShape::cache_of(std::int64_t capacity) const {
  attention::KvCacheConfig config;
  config.sequences = batch;
  config.num_kv_heads = num_kv_heads;
  config.head_dim = head_dim;
  config.capacity = capacity;
  config.dtype = storage_of(dtype);
  config.page_size = page_size;
  return config;
}

reports::Object ServingShape::fields(std::string_view mode) const {
  reports::Object object;
  object.set("mode", std::string(mode));
  object.set("impl", impl);
  object.set("dtype", name(dtype));
  object.set("batch", batch);
  object.set("num_heads", num_heads);
  object.set("num_kv_heads", num_kv_heads);
  object.set("d_model", d_model());
  object.set("head_dim", head_dim);
  return object;
}

std::vector<std::pair<std::string, std::string>> ServingShape::option_values(std::string_view mode) const {
  return {{"--mode", std::string(mode)},           {"--impl", impl},
          {"--dtype", std::string(name(dtype))},   {"--batch", std::to_string(batch)},
          {"--heads", std::to_string(num_heads)},  {"--kv-heads", std::to_string(num_kv_heads)},
          {"--d-model", std::to_string(d_model())}};
}

std::vector<ServingShape> expand_shapes(const harness::OptionTable& table) {
  constexpr std::int64_t kMaxLength = (std::int64_t{1} << 31) - 1;
  constexpr std::int64_t kMaxCount = std::int64_t{1} << 24;
  const auto d_models = table.integers("--d-model", 1, kMaxLength);
  const bool by_head_dim = !table.text("--head-dim").empty();
  const auto heads_or_dims =
      by_head_dim ? table.integers("--head-dim", 1, 256) : table.integers("--heads", 1, kMaxCount);
  std::vector<std::int64_t> kv_heads_list{0};
  if (!table.text("--kv-heads").empty()) kv_heads_list = table.integers("--kv-heads", 1, kMaxCount);
  const auto batches = table.integers("--batch", 1, kMaxCount);

  std::vector<ServingShape> shapes;
  for (const std::int64_t d_model : d_models) {
    for (const std::int64_t heads_or_dim : heads_or_dims) {
      if (d_model % heads_or_dim != 0) {
        throw table.error(by_head_dim ? "--head-dim" : "--heads",
                          std::to_string(heads_or_dim) + " does not divide --d-model " + std::to_string(d_model));
      }
      ServingShape shape;
      shape.num_heads = by_head_dim ? d_model / heads_or_dim : heads_or_dim;
      shape.head_dim = d_model / shape.num_heads;
      if (shape.head_dim > 256) {
        throw table.error("--d-model", std::to_string(d_model) + " over " + std::to_string(shape.num_heads) +
                                           " heads gives head_dim " + std::to_string(shape.head_dim) +
                                           ", and head_dim is at most 256: raise --heads");
      }
      for (const std::int64_t kv_heads : kv_heads_list) {
        shape.num_kv_heads = kv_heads == 0 ? shape.num_heads : kv_heads;
        if (shape.num_heads % shape.num_kv_heads != 0) {
          throw table.error("--kv-heads", std::to_string(shape.num_kv_heads) + " does not divide the " +
                                              std::to_string(shape.num_heads) + " query heads");
        }
        for (const std::int64_t batch : batches) {
          shape.batch = batch;
          shapes.push_back(shape);
        }
      }
    }
  }
  return shapes;
}

}  // namespace warpmeter::attn_bench
