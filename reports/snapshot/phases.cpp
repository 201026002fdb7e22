#include "reports/snapshot/phases.hpp"

#include <algorithm>

namespace warpmeter::reports::snapshot {

std::vector<Phase> phases_of(const Snapshot& snapshot, std::size_t device) {
  std::vector<const Annotation*> ordered;
  for (const Annotation& annotation : snapshot.annotations) {
    if (annotation.device == static_cast<std::int64_t>(device) || annotation.device < 0) ordered.push_back(&annotation);
  }
  std::stable_sort(ordered.begin(), ordered.end(),
                   [](const Annotation* a, const Annotation* b) { return a->time_us < b->time_us; });
  std::vector<Phase> phases;
  std::vector<std::size_t> open;
  for (const Annotation* annotation : ordered) {
    const std::string_view stage = snapshot.text(annotation->stage);
    if (stage == "START") {
      open.push_back(phases.size());
      Phase phase;
      phase.name = annotation->name;
      phase.begin_us = annotation->time_us;
      phase.end_us = INT64_MAX;
      phase.depth = static_cast<std::uint32_t>(open.size() - 1);
      phases.push_back(phase);
      continue;
    }
    // Nobody nests deeper, and a file that does must not cost the square of its annotations.
    constexpr std::size_t kDeepest = 256;
    const auto last = open.rbegin() + static_cast<std::ptrdiff_t>(std::min(open.size(), kDeepest));
    const auto own =
        std::find_if(open.rbegin(), last, [&](std::size_t i) { return phases[i].name == annotation->name; });
    if (stage != "END" || own == last) continue;
    phases[*own].end_us = annotation->time_us;
    open.erase(std::next(own).base());
  }
  if (phases.empty()) return phases;

  // Times of a trace may step back a little; the event is where the latest time so far says.
  std::vector<std::int64_t> times;
  if (device < snapshot.traces.size()) {
    times.reserve(snapshot.traces[device].size());
    std::int64_t latest = INT64_MIN;
    for (const Event& event : snapshot.traces[device]) times.push_back(latest = std::max(latest, event.time_us));
  }
  const auto first_from = [&](std::int64_t time) {
    return static_cast<std::uint32_t>(std::lower_bound(times.begin(), times.end(), time) - times.begin());
  };
  for (Phase& phase : phases) {
    phase.begin = first_from(phase.begin_us);
    phase.end = phase.end_us == INT64_MAX ? static_cast<std::uint32_t>(times.size()) : first_from(phase.end_us);
    if (phase.end_us == INT64_MAX)
      phase.end_us = times.empty() ? phase.begin_us : std::max(times.back(), phase.begin_us);
  }
  return phases;
}

}  // namespace warpmeter::reports::snapshot
