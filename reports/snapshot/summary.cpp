#include "reports/snapshot/summary.hpp"

#include <algorithm>
#include <unordered_map>

#include "reports/snapshot/labels.hpp"
#include "reports/snapshot/phases.hpp"

namespace warpmeter::reports::snapshot {
namespace {

/// The largest of any stretch of values in the logarithm of their number.
class RangeMaximum {
 public:
  explicit RangeMaximum(const std::vector<Level>& levels) : size_(levels.size()), tree_(2 * levels.size()) {
    for (std::size_t i = 0; i < size_; ++i) tree_[size_ + i] = levels[i].allocated;
    for (std::size_t i = size_; i-- > 1;) tree_[i] = std::max(tree_[2 * i], tree_[2 * i + 1]);
  }
  [[nodiscard]] std::uint64_t of(std::size_t begin, std::size_t end) const {
    std::uint64_t largest = 0;
    for (begin += size_, end += size_; begin < end; begin /= 2, end /= 2) {
      if (begin % 2 != 0) largest = std::max(largest, tree_[begin++]);
      if (end % 2 != 0) largest = std::max(largest, tree_[--end]);
    }
    return largest;
  }

 private:
  std::size_t size_;
  std::vector<std::uint64_t> tree_;
};

/// Sums by a label's id.
class Grouping {
 public:
  void add(TextId name, std::uint64_t bytes) {
    auto& sum = sums_[name];
    sum.bytes += bytes;
    ++sum.blocks;
  }
  [[nodiscard]] std::vector<Group> sorted(const Labels& labels) const {
    std::vector<Group> groups;
    for (const auto& [name, sum] : sums_) {
      groups.push_back(sum);
      groups.back().name = labels.text(name);
    }
    std::sort(groups.begin(), groups.end(),
              [](const Group& a, const Group& b) { return a.bytes != b.bytes ? a.bytes > b.bytes : a.name < b.name; });
    return groups;
  }

 private:
  std::unordered_map<TextId, Group> sums_;
};

class DeviceSummarizer {
 public:
  DeviceSummarizer(const Snapshot& snapshot, const Labels& labels, std::size_t device, const SummaryOptions& options)
      : snapshot_(snapshot), labels_(labels), device_(device), options_(options), replay_(replay(snapshot, device)) {}

  DeviceSummary run() {
    out_.device = replay_.device;
    levels();
    at_peak();
    segments();
    phases();
    return std::move(out_);
  }

 private:
  [[nodiscard]] const std::vector<Event>& trace() const {
    static const std::vector<Event> kNone;
    return device_ < snapshot_.traces.size() ? snapshot_.traces[device_] : kNone;
  }

  void levels() {
    out_.events = trace().size();
    for (const Event& event : trace()) {
      ++out_.actions[static_cast<std::size_t>(event.action)];
      if (event.action == Action::oom) {
        ++out_.ooms;
        out_.oom_requested = event.size;
        out_.oom_device_free = event.device_free;
      }
    }
    out_.begin = replay_.before;
    out_.peak = replay_.peak;
    out_.end = replay_.end();
    out_.reserved_peak = replay_.reserved_peak;
    if (replay_.peak_event != Replay::kNone) {
      out_.peak_event = replay_.peak_event;
      const auto first = static_cast<std::uint64_t>(trace().front().time_us);
      out_.peak_time_us =
          static_cast<std::int64_t>(static_cast<std::uint64_t>(trace()[replay_.peak_event].time_us) - first);
    }
  }

  [[nodiscard]] NamedAllocation named(const Allocation& allocation) const {
    NamedAllocation entry;
    entry.size = allocation.size;
    entry.requested = allocation.requested;
    entry.category = labels_.text(labels_.category(allocation));
    const StackLabels& stack = labels_.of(allocation.stack);
    entry.operation = labels_.text(stack.operation);
    entry.layer = labels_.text(stack.layer);
    entry.source = labels_.text(stack.source);
    entry.frames = labels_.frames(allocation.stack);
    if (allocation.begin != Allocation::kBefore) entry.begin = allocation.begin;
    if (allocation.end != Allocation::kNever) entry.end = allocation.end;
    return entry;
  }
  /// The largest of `which`, first the earlier ones.
  [[nodiscard]] std::vector<NamedAllocation> largest(std::vector<std::uint32_t> which) const {
    const auto larger = [&](std::uint32_t a, std::uint32_t b) {
      const auto& x = replay_.allocations[a];
      const auto& y = replay_.allocations[b];
      return x.size != y.size ? x.size > y.size : a < b;
    };
    const std::size_t count = std::min(which.size(), options_.largest);
    std::partial_sort(which.begin(), which.begin() + static_cast<std::ptrdiff_t>(count), which.end(), larger);
    std::vector<NamedAllocation> entries;
    for (std::size_t i = 0; i < count; ++i) entries.push_back(named(replay_.allocations[which[i]]));
    return entries;
  }

  void at_peak() {
    Grouping categories, operations, layers;
    std::vector<std::uint32_t> live, all;
    for (std::uint32_t i = 0; i < replay_.allocations.size(); ++i) {
      const Allocation& allocation = replay_.allocations[i];
      all.push_back(i);
      if (!replay_.live_at_peak(allocation)) continue;
      live.push_back(i);
      categories.add(labels_.category(allocation), allocation.size);
      operations.add(labels_.of(allocation.stack).operation, allocation.size);
      if (const TextId layer = labels_.of(allocation.stack).layer; layer != 0) layers.add(layer, allocation.size);
    }
    out_.peak_blocks = live.size();
    out_.categories = categories.sorted(labels_);
    out_.operations = operations.sorted(labels_);
    out_.layers = layers.sorted(labels_);
    out_.largest_at_peak = largest(std::move(live));
    out_.largest = largest(std::move(all));
  }

  void segments() {
    for (const Segment& segment : snapshot_.segments) {
      if (segment.device != replay_.device) continue;
      ++out_.segments;
      out_.small_segments += snapshot_.text(segment.type) == "small" ? 1 : 0;
      out_.expandable_segments += segment.is_expandable ? 1 : 0;
      bool used = false;
      for (const Block& block : segment.blocks) {
        if (block.state != BlockState::inactive) {
          used = true;
          continue;
        }
        ++out_.inactive_blocks;
        out_.inactive_bytes += block.size;
        out_.largest_inactive = std::max(out_.largest_inactive, block.size);
      }
      if (!used) out_.cached_segment_bytes += segment.total_size;
    }
  }

  [[nodiscard]] const Level& before_event(std::uint32_t i) const {
    return i == 0 ? replay_.before : replay_.after[i - 1];
  }

  void phases() {
    const std::vector<Phase> found = phases_of(snapshot_, device_);
    if (found.empty()) return;
    const RangeMaximum maximum(replay_.after);
    // Blocks handed out up to each event.
    std::vector<std::uint64_t> count{0}, bytes{0};
    for (std::uint32_t i = 0; i < replay_.of_event.size(); ++i) {
      const std::uint32_t which = replay_.of_event[i];
      const bool begins = which != Replay::kNone && replay_.allocations[which].begin == i;
      count.push_back(count.back() + (begins ? 1 : 0));
      bytes.push_back(bytes.back() + (begins ? replay_.allocations[which].size : 0));
    }
    // By name and what it lies within: a layer's forward is not its backward.
    std::unordered_map<std::uint64_t, std::size_t> places;
    std::vector<std::size_t> within;  // the open ones' places, outermost first
    std::uint32_t depth = 0;
    for (const Phase& phase : found) {
      within.resize(std::min<std::size_t>(within.size(), phase.depth));
      const std::uint64_t outer = within.empty() ? 0 : within.back() + 1;
      const auto [place, added] = places.try_emplace(outer << 32 | phase.name, out_.phases.size());
      if (added) {
        constexpr std::size_t kReadable = 256;  // nobody reads on, and a hostile file must not make names of names
        std::string name(snapshot_.text(phase.name));
        if (!within.empty() && out_.phases[within.back()].name.size() <= kReadable) {
          name.insert(0, out_.phases[within.back()].name + " / ");
        }
        out_.phases.emplace_back().name = std::move(name);
      }
      within.push_back(place->second);
      PhaseFigures& figures = out_.phases[place->second];
      ++figures.count;
      const std::uint64_t at_begin = before_event(phase.begin).allocated;
      figures.peak = std::max({figures.peak, at_begin, maximum.of(phase.begin, phase.end)});
      figures.net = static_cast<std::int64_t>(static_cast<std::uint64_t>(figures.net) +
                                              before_event(phase.end).allocated - at_begin);
      figures.allocations += count[phase.end] - count[phase.begin];
      figures.allocated_bytes += bytes[phase.end] - bytes[phase.begin];
      figures.time_us = static_cast<std::int64_t>(static_cast<std::uint64_t>(figures.time_us) +
                                                  static_cast<std::uint64_t>(phase.end_us) -
                                                  static_cast<std::uint64_t>(phase.begin_us));
      const bool covers = out_.peak_event && phase.begin <= *out_.peak_event && *out_.peak_event < phase.end;
      if (covers && (out_.peak_phase.empty() || phase.depth >= depth)) {
        out_.peak_phase = figures.name;
        depth = phase.depth;
      }
    }
  }

  const Snapshot& snapshot_;
  const Labels& labels_;
  std::size_t device_;
  const SummaryOptions& options_;
  Replay replay_;
  DeviceSummary out_;
};

/// Both sides of every name that either has.
std::vector<Difference> compare_groups(const std::vector<Group>& a, const std::vector<Group>& b) {
  std::vector<Difference> differences;
  std::unordered_map<std::string, std::size_t> places;
  const auto at = [&](const std::string& name) -> Difference& {
    const auto [place, added] = places.try_emplace(name, differences.size());
    if (added) differences.emplace_back().name = name;
    return differences[place->second];
  };
  for (const Group& group : a) {
    at(group.name).a = group.bytes;
    at(group.name).a_blocks = group.blocks;
  }
  for (const Group& group : b) {
    at(group.name).b = group.bytes;
    at(group.name).b_blocks = group.blocks;
  }
  const auto magnitude = [](const Difference& d) { return d.a > d.b ? d.a - d.b : d.b - d.a; };
  std::stable_sort(differences.begin(), differences.end(),
                   [&](const Difference& x, const Difference& y) { return magnitude(x) > magnitude(y); });
  return differences;
}

}  // namespace

Summary summarize(const Snapshot& snapshot, const SummaryOptions& options) {
  Summary summary;
  if (const Data* recording = find(snapshot.more, "recording")) {
    const auto* facts = std::get_if<DataDict>(&recording->value);
    for (std::size_t i = 0; facts != nullptr && i < facts->keys.size(); ++i) {
      const std::string* const key = facts->keys[i].as_text();
      const Data& value = facts->values[i];
      if (key == nullptr) continue;
      if (*key == "workload" && value.as_text() != nullptr) summary.workload = *value.as_text();
      if (*key == "predicted_peak_bytes" && value.as_integer() != nullptr && *value.as_integer() >= 0) {
        summary.predicted_peak = static_cast<std::uint64_t>(*value.as_integer());
      }
    }
  }
  const Labels labels(snapshot);
  for (std::size_t device = 0; device < device_count(snapshot); ++device) {
    if (!has_device(snapshot, device)) continue;
    summary.devices.push_back(DeviceSummarizer(snapshot, labels, device, options).run());
  }
  return summary;
}

std::vector<DeviceDifference> compare(const Summary& a, const Summary& b) {
  std::vector<DeviceDifference> differences;
  static const DeviceSummary kNothing;
  const auto find_device = [](const Summary& summary, std::int64_t device) -> const DeviceSummary& {
    for (const DeviceSummary& each : summary.devices) {
      if (each.device == device) return each;
    }
    return kNothing;
  };
  std::vector<std::int64_t> devices;
  for (const Summary* side : {&a, &b}) {
    for (const DeviceSummary& each : side->devices) devices.push_back(each.device);
  }
  std::sort(devices.begin(), devices.end());
  devices.erase(std::unique(devices.begin(), devices.end()), devices.end());
  for (const std::int64_t device : devices) {
    const DeviceSummary& x = find_device(a, device);
    const DeviceSummary& y = find_device(b, device);
    DeviceDifference difference;
    difference.device = device;
    difference.totals = {
        {"peak allocated", x.peak.allocated, y.peak.allocated, x.peak_blocks, y.peak_blocks},
        {"requested at the peak", x.peak.requested, y.peak.requested, 0, 0},
        {"reserved at the peak", x.peak.reserved, y.peak.reserved, 0, 0},
        {"peak reserved", x.reserved_peak, y.reserved_peak, 0, 0},
        {"allocated at the beginning", x.begin.allocated, y.begin.allocated, 0, 0},
        {"allocated at the end", x.end.allocated, y.end.allocated, 0, 0},
        {"inactive at the end", x.inactive_bytes, y.inactive_bytes, x.inactive_blocks, y.inactive_blocks},
    };
    difference.categories = compare_groups(x.categories, y.categories);
    difference.operations = compare_groups(x.operations, y.operations);
    difference.layers = compare_groups(x.layers, y.layers);
    const auto peaks = [](const DeviceSummary& side) {
      std::vector<Group> groups;
      for (const PhaseFigures& phase : side.phases) groups.push_back({phase.name, phase.peak, phase.count});
      return groups;
    };
    difference.phases = compare_groups(peaks(x), peaks(y));
    differences.push_back(std::move(difference));
  }
  return differences;
}

}  // namespace warpmeter::reports::snapshot
