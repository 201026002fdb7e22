#pragma once

#include <string>

#include "tools/harness/option_table.hpp"

namespace warpmeter::harness {

/// An option that takes a value, in no group yet.
[[nodiscard]] OptionSpec value_option(std::string name, std::string metavar, std::string fallback, std::string accepted,
                                      std::string help, std::string example);

/// One that is part of a row's configuration, in the group "Configurations".
[[nodiscard]] OptionSpec row_option(std::string name, std::string metavar, std::string fallback, std::string accepted,
                                    std::string help, std::string example);

}  // namespace warpmeter::harness
