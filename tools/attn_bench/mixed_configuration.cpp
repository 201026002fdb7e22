#include <algorithm>
#include <cmath>

#include "kernels/attention/registry.hpp"
#include "tools/attn_bench/mixed_case.hpp"
#include "tools/harness/grammar.hpp"

namespace warpmeter::attn_bench {

attention::AttentionProblem MixedConfiguration::prompt_problem() const {
  attention::AttentionProblem p = decode_problem();
  p.batch = 1;
  p.seq_len = p.kv_len = seq_len;
  return p;
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
  (void)tpot_bound_ms(table);
  const auto impls = table.words("--impl", attention::known_implementation_names(), true);
  const auto shapes = expand_shapes(table);
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
      for (const ServingShape& shape : shapes) {
        static_cast<ServingShape&>(c) = shape;
        c.impl = impl;
        c.dtype = dtype;
        add_lengths();
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
