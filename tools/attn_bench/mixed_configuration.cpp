#include <algorithm>
#include <cmath>

#include "kernels/attention/registry.hpp"
#include "tools/attn_bench/mixed_case.hpp"
#include "tools/harness/grammar.hpp"

namespace warpmeter::attn_bench {

attention::AttentionProblem MixedConfiguration::decode_problem() const {
  attention::AttentionProblem p;
  p.batch = batch;
  p.num_heads = num_heads;
  p.num_kv_heads = num_kv_heads;
  p.seq_len = 1;
  p.kv_len = kv_len;
  p.head_dim = head_dim;
  p.dtype = dtype;
  p.causal = true;
  return p;
}

attention::AttentionProblem MixedConfiguration::prompt_problem() const {
  attention::AttentionProblem p = decode_problem();
  p.batch = 1;
  p.seq_len = p.kv_len = seq_len;
  return p;
}

attention::KvCacheConfig MixedConfiguration::decode_cache() const {
  attention::KvCacheConfig config;
  config.sequences = batch;
  config.num_kv_heads = num_kv_heads;
  config.head_dim = head_dim;
  config.capacity = kv_len;
  config.dtype = storage_of(dtype);
  config.page_size = page_size;
  return config;
}

attention::KvCacheConfig MixedConfiguration::prompt_cache() const {
  attention::KvCacheConfig config = decode_cache();
  config.sequences = 1;
  config.capacity = seq_len;
  return config;
}

double tpot_bound_ms(const harness::OptionTable& table) {
  const std::string text = table.text("--tpot-bound");
  if (text.empty()) return 0;
  double bound = 0;
  try {
    bound = harness::parse_number(text, 0, 1e6);
  } catch (const harness::GrammarError& problem) {
    throw table.error("--tpot-bound", text, problem.what());
  }
  if (bound <= 0) throw table.error("--tpot-bound", text, "a bound of no time cannot be kept");
  return bound;
}

std::vector<MixedConfiguration> expand_mixed(const harness::OptionTable& table, const harness::Settings& settings) {
  constexpr std::int64_t kMaxLength = (std::int64_t{1} << 31) - 1;
  constexpr std::int64_t kMaxCount = std::int64_t{1} << 24;
  (void)tpot_bound_ms(table);
  const auto impls = table.words("--impl", attention::known_implementation_names(), true);
  const auto d_models = table.integers("--d-model", 1, kMaxLength);
  const bool by_head_dim = !table.text("--head-dim").empty();
  const auto heads_or_dims =
      by_head_dim ? table.integers("--head-dim", 1, 256) : table.integers("--heads", 1, kMaxCount);
  std::vector<std::int64_t> kv_heads_list{0};
  if (!table.text("--kv-heads").empty()) kv_heads_list = table.integers("--kv-heads", 1, kMaxCount);
  const auto batches = table.integers("--batch", 1, kMaxCount);
  if (table.text("--kv-len").empty()) throw table.error("--kv-len", "--mode mixed wants the tokens in the cache");
  const auto kv_lens = table.integers("--kv-len", 1, kMaxLength);
  const auto seq_lens = table.integers("--seq-len", 1, kMaxLength);
  const auto chunks = table.integers("--chunk", 1, kMaxLength);
  const auto pages = table.integers("--page-size", 0, 256);

  std::vector<MixedConfiguration> configurations;
  MixedConfiguration c;
  const auto add_lengths = [&] {
    for (const std::int64_t page : pages) {
      for (const std::int64_t kv_len : kv_lens) {
        for (const std::int64_t seq_len : seq_lens) {
          for (const std::int64_t chunk : chunks) {
            c.page_size = page;
            c.kv_len = kv_len;
            c.seq_len = seq_len;
            c.chunk = chunk;
            for (const attention::KvCacheConfig& cache : {c.decode_cache(), c.prompt_cache()}) {
              if (const std::string reason = invalid_reason(cache); !reason.empty()) {
                throw table.error("--page-size", std::to_string(page), reason);
              }
            }
            for (const attention::AttentionProblem& problem : {c.decode_problem(), c.prompt_problem()}) {
              if (const std::string reason = invalid_reason(problem); !reason.empty()) {
                throw harness::UsageError("mixed " + describe(problem) + ": " + reason);
              }
            }
            configurations.push_back(c);
          }
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

std::vector<std::string> mixed_row_keys() {
  return {"mode",    "impl",     "dtype",  "batch",   "num_heads", "num_kv_heads",
          "d_model", "head_dim", "kv_len", "seq_len", "chunk",     "page_size"};
}

reports::TableLayout mixed_layout() {
  reports::TableLayout layout;
  layout.group_by = {"impl", "dtype"};
  layout.columns = {"batch",           "kv_len",    "seq_len",
                    "chunk",           "tpot_ms",   "tpot_p99_ms",
                    "decode_alone_ms", "slowdown",  "prefill_tokens_per_s",
                    "tpot_tflops",     "tpot_gbps", "status"};
  layout.wide_columns = {"num_heads", "num_kv_heads", "d_model",       "head_dim",
                         "page_size", "kernel",       "decode_kernel", "steps_a_prompt"};
  for (const std::string phase : {"tpot", "decode_alone"}) {
    for (const char* figure : {"_mean_ms", "_min_ms", "_p95_ms", "_stdev_ms", "_noise", "_n", "_stop"}) {
      layout.wide_columns.push_back(phase + figure);
    }
  }
  layout.wide_columns.insert(layout.wide_columns.end(), {"decode_alone_p99_ms", "decode_tokens_per_s", "peak_mem_mib",
                                                         "tpot_bound", "tpot_bound_share", "max_rel_error", "check"});
  return layout;
}

std::vector<std::string> largest_chunks(const std::vector<reports::Row>& rows, double bound_ms) {
  struct Group {
    std::string name;
    std::int64_t measured = 0;
    std::int64_t largest = 0;
    double p99_ms = 0;
  };
  std::vector<Group> groups;
  for (const reports::Row& row : rows) {
    const auto p99 = reports::field(row, "tpot_p99_ms");
    if (row.status != reports::Status::ok || !p99 || !p99->as_number()) continue;
    std::string name;
    for (const auto& [key, value] : row.configuration.fields()) {
      if (key == "chunk" || key == "mode" || key == "d_model") continue;
      name += (name.empty() ? "" : " ") +
              (value.as_string() ? *value.as_string() : key + " " + std::to_string(*value.as_int()));
    }
    auto group = std::find_if(groups.begin(), groups.end(), [&](const Group& g) { return g.name == name; });
    if (group == groups.end()) group = groups.insert(groups.end(), Group{name});
    ++group->measured;
    const std::int64_t chunk = *row.configuration.find("chunk")->as_int();
    if (*p99->as_number() <= bound_ms && chunk > group->largest) {
      group->largest = chunk;
      group->p99_ms = *p99->as_number();
    }
  }
  const auto number = [](double value) {
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "%.4g", value);
    return std::string(text.data());
  };
  std::vector<std::string> lines;
  for (const Group& group : groups) {
    lines.push_back(group.name + ": " +
                    (group.largest == 0 ? "none of " + std::to_string(group.measured) + " chunks keeps P99 within " +
                                              number(bound_ms) + " ms"
                                        : "the largest chunk with P99 within " + number(bound_ms) + " ms is " +
                                              std::to_string(group.largest) + " (" + number(group.p99_ms) + " ms)"));
  }
  return lines;
}

}  // namespace warpmeter::attn_bench
