#include "tools/harness/memory_guard.hpp"

#include <fmt/core.h>

#include "tools/harness/grammar.hpp"

namespace warpmeter::harness {

std::optional<std::string> predicted_oom(const Prediction& prediction, std::size_t available, std::size_t limit) {
  if (prediction.peak_bytes <= available) return std::nullopt;
  // 0 means that the case does not tell its phases apart.
  if (prediction.first_phase_bytes != 0 && prediction.first_phase_bytes <= available) return std::nullopt;
  std::string reason =
      fmt::format("predicted peak {}, free {}", format_size(prediction.peak_bytes), format_size(available));
  if (limit != 0) reason += fmt::format(", limit {}", format_size(limit));
  return reason;
}

std::optional<std::string> predicted_oom(const Prediction& prediction, Session& session) {
  CachingAllocator& allocator = session.allocator();
  allocator.empty_cache();
  return predicted_oom(prediction, allocator.available_bytes(), allocator.memory_limit());
}

}  // namespace warpmeter::harness
