#include "tools/attn_bench/decode_configuration.hpp"

#include <algorithm>

#include "kernels/attention/registry.hpp"
#include "tools/harness/grammar.hpp"

namespace warpmeter::attn_bench {

namespace {

using attention::Deal;
using attention::Merge;
using harness::OptionTable;
using harness::UsageError;

constexpr std::int64_t kMaxLength = (std::int64_t{1} << 31) - 1;

std::vector<std::string_view> implementation_names() {
  std::vector<std::string_view> names;
  for (const std::string_view name : attention::known_implementation_names()) names.push_back(name);
  names.push_back("flash_decode");
  names.push_back("flash_prefill");
  return names;
}

/// Whole numbers of which one may be the word auto (0).
std::vector<std::int64_t> numbers_or_auto(const OptionTable& table, std::string_view name, std::int64_t low,
                                          std::int64_t high) {
  std::vector<std::int64_t> values;
  const std::string text = table.text(name);
  for (std::size_t start = 0; start <= text.size();) {
    const std::size_t comma = std::min(text.find(',', start), text.size());
    const std::string word = text.substr(start, comma - start);
    start = comma + 1;
    if (word == "auto") {
      values.push_back(0);
      continue;
    }
    try {
      for (const std::int64_t value : harness::parse_integer_list(word, low, high)) values.push_back(value);
    } catch (const std::exception& problem) {
      throw table.error(name, word, problem.what());
    }
  }
  return values;
}

template <class Enum, std::size_t N>
std::vector<Enum> named(const OptionTable& table, std::string_view option,
                        const std::array<std::string_view, N>& names) {
  std::vector<Enum> values;
  for (const std::string& word : table.words(option, names, true)) {
    values.push_back(static_cast<Enum>(std::find(names.begin(), names.end(), word) - names.begin()));
  }
  return values;
}

}  // namespace

std::string DecodeConfiguration::problem_key() const {
  return describe(attention_problem()) + " range " + std::to_string(value_range);
}

std::vector<DecodeConfiguration> expand_decode(const OptionTable& table, const harness::Settings& settings) {
  const auto known = implementation_names();
  const auto impls = table.words("--impl", known, true);
  const auto shapes = expand_shapes(table);
  if (table.text("--kv-len").empty()) throw table.error("--kv-len", "--mode decode wants the tokens in the cache");
  const auto kv_lens = table.integers("--kv-len", 1, kMaxLength);
  std::vector<std::int64_t> tokens_list{1};
  if (!table.text("--tokens").empty()) tokens_list = table.integers("--tokens", 1, 4096);
  const auto splits_list = numbers_or_auto(table, "--splits", 1, 1024);
  const auto blocks = numbers_or_auto(table, "--block", 16, 4096);
  const auto merges = named<Merge>(table, "--merge", attention::kMergeNames);
  const auto deals = named<Deal>(table, "--deal", attention::kDealNames);
  const auto pages = table.integers("--page-size", 0, 256);
  const auto ranges = table.integers("--value-range", 0, 1'000'000);

  std::vector<DecodeConfiguration> configurations;
  const auto checked_page = [&](DecodeConfiguration c, std::int64_t page) {
    c.page_size = page;
    if (const std::string reason = invalid_reason(c.cache()); !reason.empty()) {
      throw table.error("--page-size", std::to_string(page), reason);
    }
    return page;
  };
  const auto add = [&](DecodeConfiguration c) {
    if (!c.cached()) {
      configurations.push_back(std::move(c));
      return;
    }
    if (c.flash_prefill()) {
      for (const std::int64_t splits : splits_list) {
        for (const std::int64_t page : pages) {
          c.options.splits = splits;
          c.page_size = checked_page(c, page);
          configurations.push_back(c);
        }
      }
      return;
    }
    for (const Merge merge : merges) {
      for (const Deal deal : deals) {
        for (const std::int64_t splits : splits_list) {
          for (const std::int64_t block : blocks) {
            for (const std::int64_t page : pages) {
              if (merge == Merge::sequential && splits > 1) continue;  // there is no such thing
              c.options = {splits, block, merge, deal};
              c.page_size = checked_page(c, page);
              configurations.push_back(c);
            }
          }
        }
      }
    }
  };
  for (const std::string& impl : impls) {
    for (const DType dtype : settings.dtypes) {
      for (const std::int64_t range : ranges) {
        for (const ServingShape& shape : shapes) {
          DecodeConfiguration c;
          static_cast<ServingShape&>(c) = shape;
          c.impl = impl;
          c.dtype = dtype;
          c.value_range = range;
          for (const std::int64_t tokens : tokens_list) {
            c.tokens = tokens;
            for (const std::int64_t kv_len : kv_lens) {
              if (tokens > kv_len) {
                throw table.error("--tokens", std::to_string(tokens) + " query tokens are more than --kv-len " +
                                                  std::to_string(kv_len) + " holds");
              }
              c.kv_len = kv_len;
              if (const std::string reason = invalid_reason(c.attention_problem()); !reason.empty()) {
                throw UsageError("decoding " + describe(c.attention_problem()) + ": " + reason);
              }
              add(c);
            }
          }
        }
      }
    }
  }
  return configurations;
}

}  // namespace warpmeter::attn_bench
