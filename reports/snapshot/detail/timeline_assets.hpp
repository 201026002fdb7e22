#pragma once

#include <string_view>

namespace warpmeter::reports::snapshot::detail {

/// assets/timeline.css and assets/timeline.js, built in.
extern const std::string_view kTimelineStyle;
extern const std::string_view kTimelineScript;

}  // namespace warpmeter::reports::snapshot::detail
