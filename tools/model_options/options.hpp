#pragma once

#include <array>
#include <span>
#include <string_view>
#include <vector>

#include "tools/harness/option_table.hpp"
#include "tools/model_options/setup.hpp"

namespace warpmeter::model_options {

/// What is run of a model.
inline constexpr std::array<std::string_view, 3> kModes = {"forward", "forward_backward", "train_step"};

/// A dimension that may be given beside --size.
struct Dimension {
  const char* option;
  std::int64_t transformer::ModelConfig::*field;
  const char* help;
  const char* example;
};
extern const std::array<Dimension, 5> kDimensions;

/// The options that name models: --size, --precision, --structure, --attention, --recompute, --batch, --context, the
/// dimensions, --adamw. All are row options of the group "Configurations".
[[nodiscard]] std::vector<harness::OptionSpec> model_option_specs();

/// The cross product of their lists: precision and structure outermost, then attention, recompute, batch and context,
/// and size last, as the notes' table runs. `more_sizes`: words that --size takes besides, for what is no transformer:
/// one setup for each and each precision and batch, after the others, with nothing but size, precision, batch and
/// adamw. Throws UsageError.
[[nodiscard]] std::vector<ModelSetup> expand_models(const harness::OptionTable& table,
                                                    std::span<const std::string_view> more_sizes = {});

/// "torch" or "course".
[[nodiscard]] const char* definition_name(layers::AdamwDefinition definition);

}  // namespace warpmeter::model_options
