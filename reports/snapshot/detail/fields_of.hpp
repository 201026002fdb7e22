#pragma once

#include <string_view>

#include "reports/snapshot/snapshot.hpp"

namespace warpmeter::reports::snapshot::detail {

/// Walks what a snapshot's file holds, in the order that PyTorch writes it, for the pickle and the JSON writer alike.
/// `Out` has: begin_dict(), key(text), end_dict(), begin_list(), next(), end_list(), integer(int64), count(uint64),
/// text(TextId), literal(text), boolean(bool), pair(a, b), stack(StackId), data(Data), field(Data key).
template <class Out>
class Walk {
 public:
  Walk(const Snapshot& snapshot, Out& out) : s_(snapshot), out_(out) {}

  void run() {
    out_.begin_dict();
    out_.key("segments");
    list(s_.segments, [&](const Segment& segment) { write(segment); });
    if (s_.has_traces) {
      out_.key("device_traces");
      list(s_.traces, [&](const std::vector<Event>& trace) { list(trace, [&](const Event& event) { write(event); }); });
    }
    further(s_.more);
    if (s_.has_annotations) {
      out_.key("external_annotations");
      list(s_.annotations, [&](const Annotation& annotation) { write(annotation); });
    }
    out_.end_dict();
  }

  void write(const Frame& frame) {
    out_.begin_dict();
    out_.key("name");
    out_.text(frame.name);
    out_.key("filename");
    out_.text(frame.filename);
    out_.key("line");
    out_.integer(frame.line);
    further(s_.fields[frame.more]);
    out_.end_dict();
  }

 private:
  template <class Items, class Write>
  void list(const Items& items, Write&& write_item) {
    out_.begin_list();
    for (const auto& item : items) {
      out_.next();
      write_item(item);
    }
    out_.end_list();
  }
  void further(const Fields& fields) {
    for (const auto& [key, value] : fields) {
      out_.field(key);
      out_.data(value);
    }
  }
  void integer(const char* key, std::int64_t value) {
    out_.key(key);
    out_.integer(value);
  }
  void count(const char* key, std::uint64_t value) {
    out_.key(key);
    out_.count(value);
  }

  void write(const Segment& g) {
    out_.begin_dict();
    const auto has = [&](Present bit) { return (g.present & bit) != 0; };
    if (has(Segment::kDevice)) integer("device", g.device);
    count("address", g.address);
    count("total_size", g.total_size);
    if (has(Segment::kAllocated)) count("allocated_size", g.allocated_size);
    if (has(Segment::kActive)) count("active_size", g.active_size);
    if (has(Segment::kRequested)) count("requested_size", g.requested_size);
    if (has(Segment::kStream)) integer("stream", g.stream);
    if (has(Segment::kType)) {
      out_.key("segment_type");
      out_.text(g.type);
    }
    if (has(Segment::kPool)) {
      out_.key("segment_pool_id");
      out_.pair(g.pool[0], g.pool[1]);
    }
    if (has(Segment::kExpandable)) {
      out_.key("is_expandable");
      out_.boolean(g.is_expandable);
    }
    if (has(Segment::kFrames)) {
      out_.key("frames");
      out_.stack(g.stack);
    }
    out_.key("blocks");
    list(g.blocks, [&](const Block& block) { write(block); });
    further(s_.fields[g.more]);
    out_.end_dict();
  }

  void write(const Block& b) {
    out_.begin_dict();
    if ((b.present & Block::kAddress) != 0) count("address", b.address);
    count("size", b.size);
    if ((b.present & Block::kRequested) != 0) count("requested_size", b.requested);
    out_.key("state");
    switch (b.state) {
      case BlockState::active_allocated:
        out_.literal("active_allocated");
        break;
      case BlockState::active_pending_free:
        out_.literal("active_pending_free");
        break;
      case BlockState::inactive:
        out_.literal("inactive");
        break;
      case BlockState::other:
        out_.text(b.state_text);
        break;
    }
    if ((b.present & Block::kFrames) != 0) {
      out_.key("frames");
      out_.stack(b.stack);
    }
    further(s_.fields[b.more]);
    out_.end_dict();
  }

  void write(const Event& e) {
    out_.begin_dict();
    const auto has = [&](Present bit) { return (e.present & bit) != 0; };
    out_.key("action");
    if (e.action == Action::other) {
      out_.text(e.action_text);
    } else {
      out_.literal(name(e.action));
    }
    if (has(Event::kAddress)) count("addr", e.address);
    if (has(Event::kDeviceFree)) count("device_free", e.device_free);
    if (has(Event::kSize)) count("size", e.size);
    if (has(Event::kStream)) integer("stream", e.stream);
    if (has(Event::kTime)) integer("time_us", e.time_us);
    further(s_.fields[e.more]);
    if (has(Event::kFrames)) {
      out_.key("frames");
      out_.stack(e.stack);
    }
    out_.end_dict();
  }

  void write(const Annotation& a) {
    out_.begin_dict();
    out_.key("stage");
    out_.text(a.stage);
    out_.key("name");
    out_.text(a.name);
    integer("device", a.device);
    integer("time_us", a.time_us);
    further(s_.fields[a.more]);
    out_.end_dict();
  }

  const Snapshot& s_;
  Out& out_;
};

}  // namespace warpmeter::reports::snapshot::detail
