#include "tools/allreduce_bench/collective_case.hpp"

#include <cmath>

#include <fmt/core.h>

#include "kernels/runtime/check.hpp"
#include "tools/harness/grammar.hpp"

namespace warpmeter::allreduce_bench {

namespace {
constexpr double kMiB = 1024.0 * 1024.0;
}

std::vector<std::string> row_keys() {
  return {"target", "collective", "op", "dtype", "world_size", "bytes", "tensor_size", "in_place", "buffers"};
}

reports::Object CollectiveCase::configuration() const {
  const Configuration& c = configuration_;
  reports::Object object;
  object.set("target", c.target());
  object.set("collective", name(c.kind));
  object.set("op", c.reduces() ? reports::Value(name(c.op)) : reports::Value());
  object.set("dtype", name(c.dtype));
  object.set("world_size", c.world_size);
  object.set("bytes", c.bytes);
  object.set("tensor_size", c.tensor_size());
  object.set("in_place", c.in_place);
  object.set("buffers", name(c.buffers));
  return object;
}

std::vector<std::pair<std::string, std::string>> CollectiveCase::option_values() const {
  const Configuration& c = configuration_;
  std::vector<std::pair<std::string, std::string>> values{{"--backend", std::string(c.backend->name())},
                                                          {"--collective", std::string(name(c.kind))},
                                                          {"--op", std::string(name(c.op))},
                                                          {"--dtype", std::string(name(c.dtype))},
                                                          {"--world-size", std::to_string(c.world_size)},
                                                          {"--in-place", c.in_place ? "true" : "false"},
                                                          {"--buffers", std::string(name(c.buffers))}};
  if (c.bytes > 0) values.emplace_back("--sizes", harness::format_exact_size(c.bytes));
  return values;
}

std::optional<std::string> CollectiveCase::unsupported() const {
  const Configuration& c = configuration_;
  if (auto reason = c.backend->unavailable(groups_->shape(c.world_size))) return reason;
  return c.backend->unsupported(c.kind, c.op, c.dtype);
}

harness::Prediction CollectiveCase::predict() const {
  const Configuration& c = configuration_;
  // Ranks of one host share its memory; each GPU has its own.
  const auto sharers = static_cast<std::size_t>(
      c.backend->device_kind() == DeviceKind::cpu ? groups_->shape(c.world_size).most_on_a_host : 1);
  harness::Prediction prediction;
  prediction.peak_bytes = prediction.first_phase_bytes = c.rank_bytes() * sharers;
  prediction.details.set("rank_mem_mib", static_cast<double>(c.rank_bytes()) / kMiB);
  return prediction;
}

void CollectiveCase::run(harness::Session& session, reports::Row& row) {
  const Configuration& c = configuration_;
  harness::launch::Group& group =
      groups_->get(*c.backend, c.world_size, [&](const std::string& text) { session.warn(text); });
  harness::launch::Outcome outcome = group.measure(index_, describe(c));
  row.status = outcome.status;
  row.reason = outcome.reason;
  for (const auto& [name, value] : outcome.figures.fields()) row.figures.set(name, value);
  if (!group.library_version().empty()) row.figures.set("library", group.library_version());
  if (outcome.status == reports::Status::ok) add_bound(session, group.link_gbps(), row.figures);
}

/// What it could be at best: the links' rate, or on one host the memory's, both measured on the spot.
void CollectiveCase::add_bound(harness::Session& session, std::optional<double> link_gbps,
                               reports::Object& figures) const {
  const Configuration& c = configuration_;
  figures.set("bound", nullptr);
  figures.set("bound_share", nullptr);
  const reports::Value* const median = figures.find("median_ms");
  const double median_ms = median != nullptr ? median->as_number().value_or(0) : 0;
  if (!(median_ms > 0) || c.world_size < 2) return;
  double least_ms = 0;
  if (c.backend->device_kind() == DeviceKind::cuda) {
    if (!link_gbps) return;
    const double bytes = static_cast<double>(c.elements()) * static_cast<double>(size_of(c.dtype));
    least_ms = collectives::bus_factor(c.kind, c.world_size) * bytes / (*link_gbps * 1e6);
    figures.set("bound", "link");
    figures.set("link_gbps", *link_gbps);
  } else {
    if (groups_->shape(c.world_size).hosts > 1) return;
    // Arrays that stay in the cache from call to call are not bound by memory.
    const auto arrays = static_cast<double>(c.rank_bytes()) * c.world_size;
    if (arrays <= static_cast<double>(session.ceilings().hot_cache_bytes())) return;
    // Reads and writes in equal parts, as an all_reduce has them.
    least_ms = c.least_traffic_bytes() / (session.ceilings().copy_gbps() * 1e6);
    figures.set("bound", "memory");
  }
  if (!std::isfinite(least_ms) || least_ms <= 0) {
    figures.set("bound", nullptr);
    return;
  }
  const double share = least_ms / median_ms;
  figures.set("bound_share", share);
  if (share > 1 && c.least_traffic_bytes() > static_cast<double>(session.ceilings().hot_cache_bytes())) {
    session.warn(
        fmt::format("{} of {} on {} ranks ran at {:.0f}% of its bound: part of its data was in a cache, or "
                    "its time is doubtful; see noise, and try --cache cold",
                    c.target(), describe(c), c.world_size, share * 100));
  }
}

}  // namespace warpmeter::allreduce_bench
