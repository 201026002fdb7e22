#include "tools/harness/memory_guard.hpp"

#include <algorithm>

#include <fmt/core.h>

#include "tools/harness/grammar.hpp"

namespace warpmeter::harness {
namespace {

constexpr std::size_t kStep = std::size_t{2} << 20;  // of CachingAllocator::available_bytes()

}  // namespace

std::optional<std::string> predicted_oom(const Prediction& prediction, std::size_t available, std::size_t limit) {
  if (prediction.peak_bytes <= available) return std::nullopt;
  // 0 means that the case does not tell its phases apart.
  if (prediction.first_phase_bytes != 0 && prediction.first_phase_bytes <= available) return std::nullopt;
  std::string reason =
      fmt::format("predicted peak {}, free {}", format_size(prediction.peak_bytes), format_size(available));
  if (limit != 0) reason += fmt::format(", limit {}", format_size(limit));
  if (prediction.peak_bytes <= limit && limit - prediction.peak_bytes < kStep) {
    reason += fmt::format("; memory is reserved {} at a time", format_size(kStep));
  }
  return reason;
}

std::optional<std::string> predicted_oom(const Prediction& prediction, Session& session) {
  CachingAllocator& allocator = session.allocator();
  allocator.empty_cache();
  const std::size_t available = allocator.available_bytes();
  const std::size_t limit = allocator.memory_limit();
  if (!session.settings().dump_on_oom.empty()) {
    // A snapshot is wanted of a row that does not fit, and trying is safe: a GPU or the limit refuses. The host's own
    // memory does not, it would be paged out first.
    const std::size_t reserved = allocator.stats().current.reserved;
    const bool limit_binds = limit != 0 && available + kStep > limit - std::min(limit, reserved);
    if (allocator.device().is_cuda() || limit_binds) return std::nullopt;
  }
  return predicted_oom(prediction, available, limit);
}

}  // namespace warpmeter::harness
