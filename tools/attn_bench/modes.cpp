#include "tools/attn_bench/modes.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/attention/decode.hpp"
#include "tools/harness/row_option.hpp"

namespace warpmeter::attn_bench {

namespace {

using harness::OptionSpec;

/// Options that not every mode has.
struct Owned {
  std::string_view option;
  std::vector<Mode> modes;
};
const std::vector<Owned>& owned_options() {
  static const std::vector<Owned> options = {
      {"--pass", {Mode::train}},
      {"--causal", {Mode::train}},
      {"--deterministic", {Mode::train}},
      {"--seq-len", {Mode::train, Mode::prefill, Mode::mixed}},
      {"--tokens", {Mode::train, Mode::decode}},
      {"--kv-len", {Mode::train, Mode::decode, Mode::mixed}},
      {"--chunk", {Mode::prefill, Mode::mixed}},
      {"--projections", {Mode::prefill}},
      {"--page-size", {Mode::prefill, Mode::decode, Mode::mixed}},
      {"--splits", {Mode::decode}},
      {"--merge", {Mode::decode}},
      {"--deal", {Mode::decode}},
      {"--block", {Mode::decode}},
      {"--value-range", {Mode::decode}},
      {"--tpot-bound", {Mode::mixed}},
  };
  return options;
}

template <std::size_t N>
std::string joined(const std::array<std::string_view, N>& words) {
  std::string text;
  for (const std::string_view word : words) text.append(text.empty() ? "" : ", ").append(word);
  return text;
}

OptionSpec mode_option(std::string name, std::string metavar, std::string fallback, std::string accepted,
                       std::string help, std::string example) {
  OptionSpec spec = harness::row_option(std::move(name), std::move(metavar), std::move(fallback), std::move(accepted),
                                        std::move(help), std::move(example));
  spec.group = "Serving (--mode prefill, decode, mixed)";
  return spec;
}

}  // namespace

void add_mode_options(harness::OptionTable& table) {
  OptionSpec mode = mode_option(
      "--mode", "NAME", "train", joined(kModeNames),
      "train: forwards and backwards of whole sequences. prefill: a prompt at once, and in chunks "
      "beside it. decode: the newest tokens of every sequence over its KV cache. mixed: a decoding batch with "
      "one chunk of a prompt in every step.",
      "--mode decode");
  mode.group = "Configurations";
  table.add(mode);
  table.add(mode_option("--chunk", "LIST", "512", "whole numbers from 1: a list or range",
                        "Prefill, mixed: tokens of the prompt that are worked on at once.", "--chunk 128,512,2048"));
  OptionSpec projections =
      mode_option("--projections", "", "true", "", "Prefill: with the q, k, v and out projections, or attention alone.",
                  "--no-projections");
  projections.negation = "--no-projections";
  table.add(projections);
  table.add(mode_option("--splits", "LIST", "auto", "auto, or whole numbers from 1 to 1024",
                        "Parallel streams a sequence and key/value head; auto: from the device and the work.",
                        "--splits auto,1,4,16"));
  table.add(mode_option("--merge", "NAMES", "tree", joined(attention::kMergeNames) + ", or all",
                        "How streams' results are joined: by pairs, by log-sum-exp in two steps, from every block's "
                        "maximum and sum, or one stream and no merge.",
                        "--merge tree,lse,two_pass"));
  table.add(mode_option("--deal", "NAMES", "contiguous", joined(attention::kDealNames) + ", or all",
                        "How blocks of keys are dealt to the streams.", "--deal round_robin"));
  table.add(mode_option("--block", "LIST", "auto", "auto, or whole numbers from 16 to 4096: a list or range",
                        "Keys scored at once; auto: the kernel's own choice.", "--block 16:256:x2"));
  table.add(mode_option("--page-size", "LIST", "0", "0 (contiguous), 16, 32, 64, 128, 256",
                        "Tokens a page of the KV cache; 0: one contiguous piece a sequence.", "--page-size 0,64"));
  table.add(mode_option("--value-range", "LIST", "0", "0, or whole numbers from 1",
                        "Queries, keys and values uniform in +-R instead of normal (0): what large scores do to the "
                        "result.",
                        "--value-range 1,10,50"));
  OptionSpec bound =
      mode_option("--tpot-bound", "MS", "", "a number of milliseconds above 0",
                  "Mixed: a bound for the time per output token; the largest chunk whose P99 keeps it is "
                  "told on stderr.",
                  "--tpot-bound 0.5");
  bound.row_option = false;
  table.add(bound);
}

Mode mode_of(const harness::OptionTable& table) {
  const std::string word = table.word("--mode", kModeNames);
  for (std::size_t i = 0; i < kModeNames.size(); ++i) {
    if (kModeNames[i] == word) return static_cast<Mode>(i);
  }
  return Mode::train;
}

void check_mode_options(const harness::OptionTable& table) {
  const Mode mode = mode_of(table);
  for (const Owned& owned : owned_options()) {
    if (!table.given(owned.option)) continue;
    if (std::find(owned.modes.begin(), owned.modes.end(), mode) != owned.modes.end()) continue;
    std::string modes;
    for (const Mode other : owned.modes) {
      modes.append(modes.empty() ? "--mode " : ", ").append(kModeNames[static_cast<std::size_t>(other)]);
    }
    throw harness::UsageError(std::string(owned.option), table.text(owned.option),
                              "not an option of --mode " + std::string(kModeNames[static_cast<std::size_t>(mode)]),
                              modes);
  }
}

}  // namespace warpmeter::attn_bench
