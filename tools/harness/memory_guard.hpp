#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "tools/harness/sweep.hpp"

namespace warpmeter::harness {

/// Decides before a row runs whether it can fit. Returns the reason of its oom row when not even the first phase would
/// fit in `available` bytes: "predicted peak 12.0 GiB, free 7.9 GiB, limit 8.0 GiB". A row whose first phase fits is
/// tried although its peak does not: its first figures are worth having. `limit` 0 leaves the limit out of the text.
[[nodiscard]] std::optional<std::string> predicted_oom(const Prediction& prediction, std::size_t available,
                                                       std::size_t limit);

/// The same against what the session's allocator could still give, its cache freed first. With --dump-on-oom a row that
/// a GPU or the memory limit would refuse is tried all the same.
[[nodiscard]] std::optional<std::string> predicted_oom(const Prediction& prediction, Session& session);

}  // namespace warpmeter::harness
