#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tools/harness/doctor/findings.hpp"

namespace warpmeter::harness::doctor {

inline constexpr std::string_view kSchema = "warpmeter-doctor/1";

/// For people, as Markdown that reads well on a terminal: the findings first, then what was seen.
[[nodiscard]] std::string to_text(const Facts& facts, const std::vector<Finding>& findings);

/// Everything, by reports/schema/warpmeter-doctor-1.schema.json; null for what is not known.
[[nodiscard]] std::string to_json(const Facts& facts, const std::vector<Finding>& findings);

}  // namespace warpmeter::harness::doctor
