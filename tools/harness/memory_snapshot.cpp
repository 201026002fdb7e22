#include "tools/harness/memory_snapshot.hpp"

#include <map>

namespace warpmeter::harness {
namespace {

namespace snapshot = reports::snapshot;
using snapshot::Data;

snapshot::Action action_of(MemoryAction action) {
  switch (action) {
    case MemoryAction::alloc:
      return snapshot::Action::alloc;
    case MemoryAction::free_requested:
      return snapshot::Action::free_requested;
    case MemoryAction::free_completed:
      return snapshot::Action::free_completed;
    case MemoryAction::segment_alloc:
      return snapshot::Action::segment_alloc;
    case MemoryAction::segment_free:
      return snapshot::Action::segment_free;
    case MemoryAction::oom:
      return snapshot::Action::oom;
  }
  return snapshot::Action::other;
}

class Builder {
 public:
  explicit Builder(const CachingAllocator& allocator)
      : device_(allocator.device().is_cuda() ? allocator.device().index : 0),
        history_(allocator.history()),
        segments_(allocator.segments()) {}

  snapshot::Snapshot run() {
    out_.traces.resize(static_cast<std::size_t>(device_) + 1);
    for (const MemoryEvent& event : history_.events) add(event);
    for (const MemorySegment& segment : segments_) add(segment);
    add_mark();
    add_phases();
    snapshot::DataDict settings;
    const auto set = [&](const char* name, Data value) {
      settings.keys.push_back({std::string(name)});
      settings.values.push_back(std::move(value));
    };
    set("PYTORCH_CUDA_ALLOC_CONF", {std::string()});
    set("max_split_size", {std::int64_t{-1}});
    set("garbage_collection_threshold", {0.0});
    set("expandable_segments", {false});
    set("recorded_by", {std::string("warpmeter")});
    set("events_dropped", {static_cast<std::int64_t>(history_.dropped)});
    out_.more.emplace_back(Data{std::string("allocator_settings")}, Data{std::move(settings)});
    return std::move(out_);
  }

 private:
  [[nodiscard]] std::int64_t stream(void* handle) {
    return streams_.try_emplace(handle, static_cast<std::int64_t>(streams_.size())).first->second;
  }

  [[nodiscard]] snapshot::StackId stack(const std::vector<Frame>& frames) {
    std::vector<std::uint32_t> indices;
    for (const Frame& frame : frames) {
      snapshot::Frame made;
      made.name = out_.texts.intern(frame.name);
      made.filename = out_.texts.intern(frame.file);
      made.line = frame.line;
      indices.push_back(out_.stacks.add_frame(made));
    }
    return out_.stacks.add_stack(indices);
  }

  /// category, and for what hands blocks out the size asked for.
  [[nodiscard]] snapshot::FieldsId further(std::string_view category, const std::size_t* requested) {
    const auto key = std::pair(category, requested == nullptr ? ~std::size_t{0} : *requested);
    const auto [place, added] = further_.try_emplace(key, static_cast<snapshot::FieldsId>(out_.fields.size()));
    if (added) {
      snapshot::Fields fields;
      if (requested != nullptr) {
        fields.emplace_back(Data{std::string("requested_size")}, Data{static_cast<std::int64_t>(*requested)});
      }
      fields.emplace_back(Data{std::string("category")}, Data{std::string(category.empty() ? "unknown" : category)});
      out_.fields.push_back(std::move(fields));
    }
    return place->second;
  }

  void add(const MemoryEvent& event) {
    using Event = snapshot::Event;
    Event made;
    made.action = action_of(event.action);
    made.size = event.size;
    made.stream = stream(event.stream);
    made.time_us = event.time_us;
    made.stack = stack(event.frames);
    made.present = Event::kSize | Event::kStream | Event::kTime | Event::kFrames;
    if (event.action == MemoryAction::oom) {
      made.device_free = event.device_free;
      made.present |= Event::kDeviceFree;
    } else {
      made.address = event.address;
      made.present |= Event::kAddress;
    }
    const bool of_a_block = event.action == MemoryAction::alloc || event.action == MemoryAction::free_requested ||
                            event.action == MemoryAction::free_completed;
    made.more = further(event.category, of_a_block ? &event.requested : nullptr);
    out_.traces[static_cast<std::size_t>(device_)].push_back(made);
  }

  void add(const MemorySegment& segment) {
    snapshot::Segment made;
    made.device = device_;
    made.address = segment.address;
    made.total_size = segment.size;
    made.stream = stream(segment.stream);
    made.type = out_.texts.intern(segment.small_pool ? "small" : "large");
    for (const MemoryBlock& block : segment.blocks) {
      snapshot::Block& b = made.blocks.emplace_back();
      b.address = block.address;
      b.size = block.size;
      b.requested = block.requested;
      b.state = block.state == MemoryBlock::State::active_allocated      ? snapshot::BlockState::active_allocated
                : block.state == MemoryBlock::State::active_pending_free ? snapshot::BlockState::active_pending_free
                                                                         : snapshot::BlockState::inactive;
      b.stack = stack(block.frames);
      if (!block.category.empty()) b.more = further(block.category, nullptr);
      if (block.state == MemoryBlock::State::inactive) continue;
      made.active_size += block.size;
      made.requested_size += block.requested;
      if (block.state == MemoryBlock::State::active_allocated) made.allocated_size += block.size;
    }
    out_.segments.push_back(std::move(made));
  }

  /// PyTorch ends a trace with a `snapshot` event. Here it also is the one event whose category is sure to be
  /// "unknown": the web viewer fails on a trace of categories without it.
  void add_mark() {
    auto& trace = out_.traces[static_cast<std::size_t>(device_)];
    if (trace.empty()) return;
    snapshot::Event mark;
    mark.action = snapshot::Action::snapshot;
    for (const snapshot::Segment& segment : out_.segments) mark.size += segment.active_size;
    mark.time_us = trace.back().time_us;
    mark.more = further("", nullptr);
    trace.push_back(mark);
  }

  void add_phases() {
    const snapshot::TextId start = out_.texts.intern("START");
    const snapshot::TextId end = out_.texts.intern("END");
    // In order of time; what begins within another ends before it.
    std::multimap<std::int64_t, snapshot::Annotation> ordered;
    for (std::size_t i = 1; i < history_.phases.size(); ++i) {
      const MemoryPhase& phase = history_.phases[i];
      snapshot::Annotation annotation;
      annotation.name = out_.texts.intern(phase.name);
      annotation.device = device_;
      annotation.stage = start;
      annotation.time_us = phase.begin_us;
      ordered.emplace(phase.begin_us, annotation);
      if (phase.end_us == 0) continue;
      annotation.stage = end;
      annotation.time_us = phase.end_us;
      ordered.emplace(phase.end_us, annotation);
    }
    for (const auto& [time, annotation] : ordered) out_.annotations.push_back(annotation);
  }

  std::int64_t device_;
  MemoryHistory history_;
  std::vector<MemorySegment> segments_;
  std::map<void*, std::int64_t> streams_;
  std::map<std::pair<std::string_view, std::size_t>, snapshot::FieldsId> further_;
  snapshot::Snapshot out_;
};

}  // namespace

snapshot::Snapshot take_snapshot(const CachingAllocator& allocator) {
  return Builder(allocator).run();
}

}  // namespace warpmeter::harness
