#pragma once

#include <array>
#include <string_view>

#include "tools/harness/option_table.hpp"

namespace warpmeter::attn_bench {

/// What is measured of attention: --mode.
enum class Mode : std::uint8_t {
  train,    ///< forwards and backwards of whole sequences
  prefill,  ///< a prompt at once and in chunks
  decode,   ///< the newest tokens over a KV cache
  mixed,    ///< a decoding batch with a chunk of a prompt riding along
};
inline constexpr std::array<std::string_view, 4> kModeNames = {"train", "prefill", "decode", "mixed"};

/// --mode and the options that belong to other modes than train.
void add_mode_options(harness::OptionTable& table);

[[nodiscard]] Mode mode_of(const harness::OptionTable& table);

/// Throws UsageError for an option that the user named and the mode does not have: "--pass: not an option of --mode
/// decode".
void check_mode_options(const harness::OptionTable& table);

}  // namespace warpmeter::attn_bench
