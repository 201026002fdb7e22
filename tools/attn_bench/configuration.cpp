#include "tools/attn_bench/configuration.hpp"

#include <array>
#include <limits>
#include <optional>

#include "kernels/attention/registry.hpp"
#include "tools/attn_bench/modes.hpp"
#include "tools/attn_bench/presets.hpp"
#include "tools/harness/row_option.hpp"

namespace warpmeter::attn_bench {

namespace {

using harness::OptionSpec;
using harness::OptionTable;
using harness::row_option;
using harness::UsageError;

constexpr std::int64_t kMaxLength = std::int64_t{1} << 31;
constexpr std::int64_t kMaxCount = std::int64_t{1} << 24;
constexpr std::array<std::string_view, 2> kPasses = {"fwd", "bwd"};

std::string joined_names() {
  std::string names;
  for (std::string_view name : attention::known_implementation_names()) {
    if (!names.empty()) names += ",";
    names += name;
  }
  return names;
}

}  // namespace

std::string Configuration::passes() const {
  if (forward && backward) return "fwd,bwd";
  return forward ? "fwd" : "bwd";
}

void add_options(OptionTable& table) {
  add_mode_options(table);
  const std::string lengths = "whole numbers from 1: a list or range such as 256,1024 or 256:16384:x2";
  table.add(row_option("--impl", "NAMES", "naive,fused,flash",
                       joined_names() + ",flash_decode,flash_prefill (--mode decode), or all",
                       "Implementations to compare; --list says what each supports here.", "--impl naive,flash"));
  table.add(row_option("--pass", "NAMES", "fwd,bwd", "fwd, bwd, or fwd,bwd",
                       "Passes to time. The backward needs a forward, which then runs untimed.", "--pass fwd"));
  table.add(row_option("--batch", "LIST", "8", lengths, "Batch size.", "--batch 1,8"));
  OptionSpec tokens =
      row_option("--tokens", "LIST", "", lengths,
                 "Tokens in all, instead of --batch: the batch is tokens / seq_len. Decoding: query tokens of "
                 "a sequence, beside --batch.",
                 "--tokens 16384");
  tokens.excludes = {"--batch"};
  tokens.excludes_while = {"--mode", "train"};
  table.add(tokens);
  table.add(
      row_option("--heads", "LIST", "1", lengths + ", each dividing every --d-model", "Query heads.", "--heads 16"));
  OptionSpec head_dim =
      row_option("--head-dim", "LIST", "", "whole numbers from 1 to 256, each dividing every --d-model",
                 "Width of a head, instead of --heads: the heads are d_model / head_dim.", "--head-dim 64,128");
  head_dim.excludes = {"--heads"};
  table.add(head_dim);
  table.add(row_option("--kv-heads", "LIST", "", lengths + ", each dividing the query heads",
                       "Key/value heads (grouped-query attention). As many as query heads when not given.",
                       "--kv-heads 8"));
  table.add(row_option("--d-model", "LIST", "64", lengths, "Model width: heads x head_dim.", "--d-model 16:128:x2"));
  table.add(row_option("--seq-len", "LIST", "1024", lengths, "Query length.", "--seq-len 256:16384:x2"));
  table.add(row_option("--kv-len", "LIST", "", lengths, "Key/value length. As long as seq_len when not given.",
                       "--kv-len 4096"));
  OptionSpec causal =
      row_option("--causal", "", "true", "--causal, --no-causal or --causal=both",
                 "Causal mask, aligned bottom-right: query i sees keys up to i + kv_len - seq_len.", "--no-causal");
  causal.negation = "--no-causal";
  causal.metavar = "BOOLS";
  table.add(causal);
  OptionSpec deterministic =
      row_option("--deterministic", "", "false", "",
                 "Only kernels that give the same bits on every run (no atomics whose order changes the result).",
                 "--deterministic");
  table.add(deterministic);
  table.add_presets(presets());
  table.add_examples({
      "attn_bench",
      "attn_bench --impl naive,flash --seq-len 256:4096:x2 --d-model 64 -o result.json",
      "attn_bench --preset fa_grid --impl flash,cudnn --wide",
      "attn_bench --heads 32 --kv-heads 8 --d-model 4096 --seq-len 1 --kv-len 1024:32768:x2 --pass fwd --dtype bf16",
      "attn_bench --mode prefill --seq-len 512,2048,8192 --chunk 128,512,2048 --d-model 1024 --heads 16",
      "attn_bench --mode decode --kv-len 1024:32768:x2 --heads 8 --d-model 512",
      "attn_bench --mode mixed --batch 16 --kv-len 4096 --seq-len 8192 --chunk 128:2048:x2 --tpot-bound 0.5",
      "attn_bench --memory-limit 24GiB --preset notes --format jsonl",
  });
}

std::vector<Configuration> expand(const OptionTable& table, const harness::Settings& settings) {
  const auto impls = table.words("--impl", attention::known_implementation_names(), true);
  const auto passes = table.words("--pass", kPasses);
  const auto d_models = table.integers("--d-model", 1, kMaxLength);
  const auto seq_lens = table.integers("--seq-len", 1, kMaxLength);
  // Each excludes its partner: where both are set, the stronger source has won already.
  const bool by_tokens = !table.text("--tokens").empty();
  const auto batches = table.integers(by_tokens ? "--tokens" : "--batch", 1, kMaxLength);
  const bool by_head_dim = !table.text("--head-dim").empty();
  const auto heads_or_dims =
      by_head_dim ? table.integers("--head-dim", 1, 256) : table.integers("--heads", 1, kMaxCount);
  const std::vector<bool> causals = table.flags("--causal");
  std::vector<std::int64_t> kv_heads_list{0};  // 0: as the other side
  if (!table.text("--kv-heads").empty()) kv_heads_list = table.integers("--kv-heads", 1, kMaxCount);
  std::vector<std::int64_t> kv_lens{0};
  if (!table.text("--kv-len").empty()) kv_lens = table.integers("--kv-len", 1, kMaxLength);

  Configuration base;
  base.forward = base.backward = false;
  for (const std::string& pass : passes) (pass == "fwd" ? base.forward : base.backward) = true;
  base.problem.deterministic = table.flag("--deterministic");

  std::vector<Configuration> configurations;
  const auto add = [&](const std::string& impl, DType dtype, bool causal, std::int64_t d_model,
                       std::int64_t heads_or_dim, std::int64_t kv_heads, std::int64_t batch_or_tokens,
                       std::int64_t seq_len, std::int64_t kv_len) {
    const char* head_option = by_head_dim ? "--head-dim" : "--heads";
    if (d_model % heads_or_dim != 0) {
      throw table.error(head_option,
                        std::to_string(heads_or_dim) + " does not divide --d-model " + std::to_string(d_model));
    }
    Configuration c = base;
    c.impl = impl;
    attention::AttentionProblem& p = c.problem;
    p.dtype = dtype;
    p.causal = causal;
    p.num_heads = by_head_dim ? d_model / heads_or_dim : heads_or_dim;
    p.head_dim = d_model / p.num_heads;
    if (p.head_dim > 256) {
      throw table.error("--d-model", std::to_string(d_model) + " over " + std::to_string(p.num_heads) +
                                         " heads gives head_dim " + std::to_string(p.head_dim) +
                                         ", and head_dim is at most 256: raise --heads");
    }
    p.num_kv_heads = kv_heads == 0 ? p.num_heads : kv_heads;
    if (p.num_heads % p.num_kv_heads != 0) {
      throw table.error("--kv-heads", std::to_string(p.num_kv_heads) + " does not divide the " +
                                          std::to_string(p.num_heads) + " query heads");
    }
    if (by_tokens && batch_or_tokens % seq_len != 0) {
      throw table.error("--tokens",
                        std::to_string(batch_or_tokens) + " is not a multiple of --seq-len " + std::to_string(seq_len));
    }
    p.batch = by_tokens ? batch_or_tokens / seq_len : batch_or_tokens;
    p.seq_len = seq_len;
    p.kv_len = kv_len == 0 ? seq_len : kv_len;
    if (const std::string reason = invalid_reason(p); !reason.empty()) {
      throw UsageError("attention problem " + describe(p) + ": " + reason);
    }
    configurations.push_back(std::move(c));
  };
  for (const std::string& impl : impls)
    for (const DType dtype : settings.dtypes)
      for (const bool causal : causals)
        for (const std::int64_t d_model : d_models)
          for (const std::int64_t heads_or_dim : heads_or_dims)
            for (const std::int64_t kv_heads : kv_heads_list)
              for (const std::int64_t batch : batches)
                for (const std::int64_t seq_len : seq_lens)
                  for (const std::int64_t kv_len : kv_lens)
                    add(impl, dtype, causal, d_model, heads_or_dim, kv_heads, batch, seq_len, kv_len);
  return configurations;
}

}  // namespace warpmeter::attn_bench
