#include "tools/attn_bench/attention_tool.hpp"

#include "kernels/attention/registry.hpp"
#include "tools/attn_bench/attention_case.hpp"
#include "tools/attn_bench/configuration.hpp"
#include "tools/attn_bench/decode_case.hpp"
#include "tools/attn_bench/mixed_case.hpp"
#include "tools/attn_bench/modes.hpp"
#include "tools/attn_bench/prefill_case.hpp"

namespace warpmeter::attn_bench {

std::string AttentionTool::summary() const {
  return "Time, memory and correctness of attention implementations over a sweep of shapes.";
}

void AttentionTool::add_options(harness::OptionTable& table) const {
  attn_bench::add_options(table);
}

std::string AttentionTool::default_preset(Device device) const {
  return device.is_cuda() ? "notes" : "quick";
}

std::string AttentionTool::list(const harness::OptionTable& /*table*/) const {
  std::string text;
  const auto pad = [](std::string_view word, std::size_t width) {
    std::string padded(word);
    padded.resize(std::max(width, padded.size() + 1), ' ');
    return padded;
  };
  for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::cuda}) {
    const auto table = attention::implementations(kind);
    text += kind == DeviceKind::cpu ? "On the CPU:\n" : "On CUDA devices:\n";
    if (table.empty()) text += "  none in this build (" + cuda_unavailable_reason() + ")\n";
    for (const attention::Implementation* implementation : table) {
      text += "  " + pad(implementation->name(), 16) + pad(implementation->dtypes(), 22) +
              std::string(implementation->description()) + "\n";
    }
    if (kind == DeviceKind::cpu || attention::decodes_on_cuda()) {
      text += "  " + pad("flash_decode", 16) + pad("fp32,bf16,fp16", 22) +
              "--mode decode: keys dealt to parallel streams, the results merged\n";
      text += "  " + pad("flash_prefill", 16) + pad("fp32,bf16,fp16", 22) +
              "--mode decode: flash over the cache, as a prompt's chunk has it; keys split where few heads leave a GPU "
              "idle\n";
    }
  }
  return text;
}

std::vector<std::unique_ptr<harness::Case>> AttentionTool::cases(const harness::OptionTable& table,
                                                                 const harness::Settings& settings) const {
  check_mode_options(table);
  if (mode_of(table) == Mode::decode) {
    const auto shared = std::make_shared<DecodeShared>();
    std::vector<std::unique_ptr<harness::Case>> decoding;
    for (DecodeConfiguration& configuration : expand_decode(table, settings)) {
      decoding.push_back(std::make_unique<DecodeCase>(std::move(configuration), settings.device, shared));
    }
    return decoding;
  }
  if (mode_of(table) == Mode::prefill) {
    std::vector<std::unique_ptr<harness::Case>> prefills;
    for (PrefillConfiguration& configuration : expand_prefill(table, settings)) {
      prefills.push_back(std::make_unique<PrefillCase>(std::move(configuration), settings.device));
    }
    return prefills;
  }
  if (mode_of(table) == Mode::mixed) {
    const auto shared = std::make_shared<MixedShared>();
    std::vector<std::unique_ptr<harness::Case>> steps;
    for (MixedConfiguration& configuration : expand_mixed(table, settings)) {
      steps.push_back(std::make_unique<MixedCase>(std::move(configuration), settings.device, shared));
    }
    return steps;
  }
  const auto references = std::make_shared<ReferenceCache>();
  std::vector<std::unique_ptr<harness::Case>> cases;
  for (Configuration& configuration : expand(table, settings)) {
    cases.push_back(std::make_unique<AttentionCase>(std::move(configuration), settings.device, references));
  }
  return cases;
}

reports::TableLayout AttentionTool::layout() const {
  reports::TableLayout layout;
  layout.group_by = {"impl", "dtype"};
  layout.columns = {
      "d_model",          "seq_len", "fwd_ms", "bwd_ms", "fwd_peak_mem_mib", "bwd_mem_before_backward_mib",
      "bwd_peak_mem_mib", "status"};
  layout.wide_columns = {"batch", "num_heads", "num_kv_heads", "head_dim", "kv_len", "causal", "deterministic", "pass"};
  for (const std::string phase : {"fwd", "bwd"}) {
    layout.wide_columns.push_back(phase == "fwd" ? "kernel" : "bwd_kernel");
    for (const char* figure : {"_mean_ms", "_min_ms", "_p95_ms", "_p99_ms", "_stdev_ms", "_noise", "_n", "_stop",
                               "_tflops", "_gbps", "_bound", "_bound_share"}) {
      layout.wide_columns.push_back(phase + figure);
    }
  }
  layout.wide_columns.insert(layout.wide_columns.end(), {"max_rel_error", "check"});
  return layout;
}

std::vector<std::string> AttentionTool::row_keys() const {
  return attention_row_keys();
}

std::string AttentionTool::preset_for(const harness::OptionTable& table, Device device) const {
  const Mode mode = mode_of(table);
  return mode == Mode::train ? default_preset(device) : std::string(kModeNames[static_cast<std::size_t>(mode)]);
}

reports::TableLayout AttentionTool::layout_for(const harness::OptionTable& table) const {
  switch (mode_of(table)) {
    case Mode::decode:
      return decode_layout();
    case Mode::prefill:
      return prefill_layout();
    case Mode::mixed:
      return mixed_layout();
    case Mode::train:
      break;
  }
  return layout();
}

std::vector<std::string> AttentionTool::row_keys_for(const harness::OptionTable& table) const {
  switch (mode_of(table)) {
    case Mode::decode:
      return decode_row_keys();
    case Mode::prefill:
      return prefill_row_keys();
    case Mode::mixed:
      return mixed_row_keys();
    case Mode::train:
      break;
  }
  return row_keys();
}

std::vector<std::string> AttentionTool::closing(const harness::OptionTable& table,
                                                const reports::Document& document) const {
  const double bound_ms = mode_of(table) == Mode::mixed ? tpot_bound_ms(table) : 0;
  return bound_ms > 0 ? largest_chunks(document.rows, bound_ms) : std::vector<std::string>();
}

}  // namespace warpmeter::attn_bench
