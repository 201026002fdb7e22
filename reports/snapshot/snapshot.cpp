#include "reports/snapshot/snapshot.hpp"

#include <algorithm>

namespace warpmeter::reports::snapshot {
namespace {

constexpr std::array<std::string_view, kActions> kActionNames = {
    "alloc",       "free_requested", "free_completed", "segment_alloc", "segment_free",
    "segment_map", "segment_unmap",  "snapshot",       "oom",           ""};

void mix(std::size_t& hash, std::uint64_t value) noexcept {
  hash ^= value + 0x9E3779B97F4A7C15ULL + (hash << 6) + (hash >> 2);
}

std::string at(const char* list, std::size_t index) {
  return std::string(list) + "[" + std::to_string(index) + "]";
}

/// Compares two snapshots, which number their texts and stacks differently.
class Comparison {
 public:
  Comparison(const Snapshot& a, const Snapshot& b) : a_(a), b_(b) {}

  std::string run() {
    if (a_.has_traces != b_.has_traces || a_.has_annotations != b_.has_annotations) return "top-level keys";
    if (!same_fields(a_.more, b_.more)) return "further top-level fields";
    if (a_.segments.size() != b_.segments.size()) return "number of segments";
    for (std::size_t i = 0; i < a_.segments.size(); ++i) {
      if (auto where = segment(a_.segments[i], b_.segments[i]); !where.empty()) return at("segments", i) + where;
    }
    if (a_.traces.size() != b_.traces.size()) return "number of device traces";
    for (std::size_t d = 0; d < a_.traces.size(); ++d) {
      if (a_.traces[d].size() != b_.traces[d].size()) return at("device_traces", d) + ": number of events";
      for (std::size_t i = 0; i < a_.traces[d].size(); ++i) {
        if (const char* field = event(a_.traces[d][i], b_.traces[d][i])) {
          return at("device_traces", d) + at("", i) + ": " + field;
        }
      }
    }
    if (a_.annotations.size() != b_.annotations.size()) return "number of annotations";
    for (std::size_t i = 0; i < a_.annotations.size(); ++i) {
      const Annotation& x = a_.annotations[i];
      const Annotation& y = b_.annotations[i];
      if (!texts(x.name, y.name) || !texts(x.stage, y.stage) || x.device != y.device || x.time_us != y.time_us ||
          !more(x.more, y.more)) {
        return at("external_annotations", i);
      }
    }
    return "";
  }

 private:
  [[nodiscard]] bool texts(TextId x, TextId y) const { return a_.texts[x] == b_.texts[y]; }
  [[nodiscard]] bool more(FieldsId x, FieldsId y) const { return same_fields(a_.fields[x], b_.fields[y]); }
  [[nodiscard]] bool stacks(StackId x, StackId y) const {
    const auto p = a_.stacks[x];
    const auto q = b_.stacks[y];
    return std::equal(p.begin(), p.end(), q.begin(), q.end(), [&](std::uint32_t i, std::uint32_t j) {
      const Frame& f = a_.stacks.frame(i);
      const Frame& g = b_.stacks.frame(j);
      return texts(f.name, g.name) && texts(f.filename, g.filename) && f.line == g.line && more(f.more, g.more);
    });
  }
  [[nodiscard]] std::string segment(const Segment& x, const Segment& y) const {
    if (x.device != y.device || x.address != y.address || x.total_size != y.total_size ||
        x.allocated_size != y.allocated_size || x.active_size != y.active_size ||
        x.requested_size != y.requested_size || x.stream != y.stream || !texts(x.type, y.type) || x.pool != y.pool ||
        x.is_expandable != y.is_expandable || x.present != y.present || !stacks(x.stack, y.stack) ||
        !more(x.more, y.more)) {
      return ": its own fields";
    }
    if (x.blocks.size() != y.blocks.size()) return ": number of blocks";
    for (std::size_t i = 0; i < x.blocks.size(); ++i) {
      const Block& p = x.blocks[i];
      const Block& q = y.blocks[i];
      if (p.address != q.address || p.size != q.size || p.requested != q.requested || p.state != q.state ||
          !texts(p.state_text, q.state_text) || p.present != q.present || !stacks(p.stack, q.stack) ||
          !more(p.more, q.more)) {
        return "." + at("blocks", i);
      }
    }
    return "";
  }
  [[nodiscard]] const char* event(const Event& x, const Event& y) const {
    if (x.action != y.action || !texts(x.action_text, y.action_text)) return "action";
    if (x.present != y.present) return "which fields there are";
    if (x.address != y.address) return "addr";
    if (x.size != y.size) return "size";
    if (x.device_free != y.device_free) return "device_free";
    if (x.time_us != y.time_us) return "time_us";
    if (x.stream != y.stream) return "stream";
    if (!stacks(x.stack, y.stack)) return "frames";
    return more(x.more, y.more) ? nullptr : "further fields";
  }

  const Snapshot& a_;
  const Snapshot& b_;
};

}  // namespace

std::string_view name(Action action) noexcept {
  return kActionNames[static_cast<std::size_t>(action)];
}

Action parse_action(std::string_view text) noexcept {
  for (std::size_t i = 0; i + 1 < kActions; ++i) {
    if (kActionNames[i] == text) return static_cast<Action>(i);
  }
  return Action::other;
}

std::size_t Stacks::FrameHash::operator()(const Frame& frame) const noexcept {
  std::size_t hash = frame.name;
  mix(hash, frame.filename);
  mix(hash, static_cast<std::uint64_t>(frame.line));
  mix(hash, frame.more);
  return hash;
}

std::uint32_t Stacks::add_frame(const Frame& frame) {
  const auto [place, added] = frame_ids_.try_emplace(frame, static_cast<std::uint32_t>(frames_.size()));
  if (added) frames_.push_back(frame);
  return place->second;
}

StackId Stacks::add_stack(std::span<const std::uint32_t> frames) {
  std::size_t hash = frames.size();
  for (const std::uint32_t frame : frames) mix(hash, frame);
  const auto [begin, end] = stack_ids_.equal_range(hash);
  for (auto found = begin; found != end; ++found) {
    const auto known = (*this)[found->second];
    if (std::equal(known.begin(), known.end(), frames.begin(), frames.end())) return found->second;
  }
  const auto id = static_cast<StackId>(size());
  indices_.insert(indices_.end(), frames.begin(), frames.end());
  begins_.push_back(indices_.size());
  stack_ids_.emplace(hash, id);
  return id;
}

std::size_t Snapshot::events() const {
  std::size_t count = 0;
  for (const auto& trace : traces) count += trace.size();
  return count;
}

std::string_view Snapshot::more_text(FieldsId id, std::string_view field) const {
  const Data* const data = find(fields[id], field);
  const std::string* const found = data == nullptr ? nullptr : data->as_text();
  return found == nullptr ? std::string_view() : std::string_view(*found);
}

std::string difference(const Snapshot& a, const Snapshot& b) {
  return Comparison(a, b).run();
}

}  // namespace warpmeter::reports::snapshot
