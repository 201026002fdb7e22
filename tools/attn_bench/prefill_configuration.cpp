#include "kernels/attention/registry.hpp"
#include "tools/attn_bench/prefill_case.hpp"

namespace warpmeter::attn_bench {

std::vector<PrefillConfiguration> expand_prefill(const harness::OptionTable& table, const harness::Settings& settings) {
  constexpr std::int64_t kMaxLength = (std::int64_t{1} << 31) - 1;
  const auto impls = table.words("--impl", attention::known_implementation_names(), true);
  const auto shapes = expand_shapes(table);
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

}  // namespace warpmeter::attn_bench
