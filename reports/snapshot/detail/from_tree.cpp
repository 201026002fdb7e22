#include "reports/snapshot/detail/from_tree.hpp"

#include <algorithm>
#include <initializer_list>
#include <unordered_map>

#include "reports/detail/utf8.hpp"

namespace warpmeter::reports::snapshot::detail {
namespace {

using Kind = Word::Kind;

std::string_view type_name(Word word) {
  switch (word.kind()) {
    case Kind::special:
      return word.payload() == kNone ? "None" : "a bool";
    case Kind::integer:
    case Kind::big:
      return "an int";
    case Kind::real:
      return "a float";
    case Kind::text:
      return "a str";
    case Kind::list:
      return "a list";
    case Kind::tuple:
      return "a tuple";
    case Kind::dict:
      return "a dict";
  }
  return "";
}

/// Where in the snapshot the reader is, put into words only when something is wrong there.
struct Place {
  const char* list;
  std::size_t index = 0;
  const Place* within = nullptr;

  [[nodiscard]] std::string text() const {
    std::string own =
        std::string(list) + (list[0] == '\0' || index != kNoIndex ? "[" + std::to_string(index) + "]" : "");
    if (within == nullptr) return own;
    return within->text() + (own.starts_with('[') ? "" : ".") + own;
  }
  static constexpr std::size_t kNoIndex = static_cast<std::size_t>(-1);
};

[[noreturn]] void fail(const Place& place, std::string_view what) {
  throw TreeError(place.text() + ": " + std::string(what));
}

/// What a struct's field means, by the number of its name; kUnknown for the others.
constexpr std::uint8_t kUnknown = 0xFF;

/// Which names a struct has: from a text's id to the field's number.
class Names {
 public:
  Names(Texts& texts, std::initializer_list<std::string_view> names) {
    std::uint8_t number = 0;
    for (const std::string_view name : names) {
      const TextId id = texts.intern(name);
      if (id >= numbers_.size()) numbers_.resize(id + 1, kUnknown);
      numbers_[id] = number++;
    }
  }
  [[nodiscard]] std::uint8_t operator[](Word key) const {
    return key.kind() == Kind::text && key.payload() < numbers_.size() ? numbers_[key.payload()] : kUnknown;
  }

 private:
  std::vector<std::uint8_t> numbers_;
};

class FromTree {
 public:
  FromTree(DataTree& tree, const ReadLimits& limits)
      : tree_(tree),
        limits_(limits),
        // Each value of an honest file is read once; only one that names its values again and again reads more.
        budget_(tree.words() + tree.containers() + (std::size_t{1} << 16)),
        known_(tree.containers(), kNotYet),
        event_names_(tree.texts(), {"action", "addr", "size", "stream", "time_us", "frames", "device_free"}),
        segment_names_(tree.texts(),
                       {"device", "address", "total_size", "allocated_size", "active_size", "requested_size", "stream",
                        "segment_type", "segment_pool_id", "is_expandable", "frames", "blocks"}),
        block_names_(tree.texts(), {"address", "size", "requested_size", "state", "frames"}),
        frame_names_(tree.texts(), {"name", "filename", "line"}),
        annotation_names_(tree.texts(), {"name", "stage", "device", "time_us"}) {
    for (std::size_t i = 0; i + 1 < kActions; ++i) {
      actions_.emplace(tree.texts().intern(name(static_cast<Action>(i))), static_cast<Action>(i));
    }
    active_ = tree.texts().intern("active_allocated");
    pending_ = tree.texts().intern("active_pending_free");
    inactive_ = tree.texts().intern("inactive");
  }

  Snapshot run(Word root) {
    if (root.kind() != Kind::dict) throw TreeError("not a memory snapshot: " + std::string(type_name(root)));
    bool has_segments = false;
    out_.has_traces = out_.has_annotations = false;
    const Place whole{"snapshot", Place::kNoIndex};
    for_fields(root, whole, [&](Word key, Word value) {
      const std::string_view name = key.kind() == Kind::text ? tree_.text_of(key) : std::string_view();
      if (name == "segments") {
        has_segments = true;
        read_list(value, "segments", nullptr, out_.segments,
                  [&](Word item, const Place& place, Segment& segment) { read_segment(item, place, segment); });
      } else if (name == "device_traces") {
        out_.has_traces = true;
        read_list(value, "device_traces", nullptr, out_.traces,
                  [&](Word item, const Place& place, std::vector<Event>& trace) {
                    read_list(item, "", &place, trace,
                              [&](Word entry, const Place& at, Event& event) { read_event(entry, at, event); });
                  });
      } else if (name == "external_annotations") {
        out_.has_annotations = true;
        read_list(
            value, "external_annotations", nullptr, out_.annotations,
            [&](Word item, const Place& place, Annotation& annotation) { read_annotation(item, place, annotation); });
      } else {
        if (key.is_container()) fail(whole, "a key is " + std::string(type_name(key)));
        out_.more.emplace_back(data(key, whole, 0), data(value, whole, 0));
      }
    });
    if (!has_segments) throw TreeError("not a memory snapshot: there is no 'segments'");
    out_.texts = tree_.take_texts();
    return std::move(out_);
  }

 private:
  void spend(std::size_t count, const Place& place) {
    if (count > budget_) fail(place, "values that are used over and over, or within themselves: no snapshot has them");
    budget_ -= count;
  }

  /// Calls `field(key, value)` for each key, the last value where one comes twice, in the order of the keys.
  template <class Field>
  void for_fields(Word dict, const Place& place, Field&& field) {
    if (dict.kind() != Kind::dict) fail(place, "is " + std::string(type_name(dict)) + ", not a dict");
    const auto items = tree_.items(dict);
    spend(items.size() + 1, place);
    // Python keeps the last value of a key at the key's first place.
    if (items.size() > 2 * kSmallDict) {
      std::unordered_map<std::uint64_t, std::size_t> last;
      for (std::size_t i = 0; i < items.size(); i += 2) last[items[i].bits()] = i;
      for (std::size_t i = 0; i < items.size(); i += 2) {
        const auto found = last.find(items[i].bits());
        if (found == last.end()) continue;
        field(items[i], items[found->second + 1]);
        last.erase(found);
      }
      return;
    }
    for (std::size_t i = 0; i < items.size(); i += 2) {
      std::size_t last = i;
      bool first = true;
      for (std::size_t j = 0; j < i && first; j += 2) first = !(items[j] == items[i]);
      if (!first) continue;
      for (std::size_t j = i + 2; j < items.size(); j += 2) {
        if (items[j] == items[i]) last = j;
      }
      field(items[i], items[last + 1]);
    }
  }
  static constexpr std::size_t kSmallDict = 64;

  template <class Item, class Read>
  void read_list(Word list, const char* name, const Place* within, std::vector<Item>& out, Read&& read) {
    const Place whole{name, within == nullptr ? Place::kNoIndex : 0, within};
    if (list.kind() != Kind::list && list.kind() != Kind::tuple) {
      fail(within == nullptr ? whole : *within, "is " + std::string(type_name(list)) + ", not a list");
    }
    const auto items = tree_.items(list);
    spend(items.size() + 1, whole);
    if (!out.empty()) out.clear();
    out.reserve(items.size());
    for (std::size_t i = 0; i < items.size(); ++i) {
      const Place place{name, i, within};
      read(items[i], place, out.emplace_back());
    }
  }

  // Scalars

  [[noreturn]] void wrong(const Place& place, std::string_view field, Word word, std::string_view wanted) const {
    fail(place, "'" + std::string(field) + "' is " + std::string(type_name(word)) + ", not " + std::string(wanted));
  }
  std::int64_t integer(Word word, const Place& place, std::string_view field) const {
    if (word.kind() == Kind::integer) return word.small();
    if (word.kind() == Kind::big) {
      const Data value = integer_from_bytes(tree_.big_of(word));
      if (const std::int64_t* small = value.as_integer()) return *small;
      fail(place, "'" + std::string(field) + "' is beyond 64 bits");
    }
    wrong(place, field, word, "an int");
  }
  /// From 0 to 2^64 - 1.
  std::uint64_t count(Word word, const Place& place, std::string_view field) const {
    if (word.kind() == Kind::big) {
      std::string bytes = tree_.big_of(word);
      if (bytes.size() == 9 && bytes[8] == '\0') {
        std::uint64_t value = 0;
        for (std::size_t i = 8; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
        return value;
      }
    }
    const std::int64_t value = integer(word, place, field);
    if (value < 0) fail(place, "'" + std::string(field) + "' is negative");
    return static_cast<std::uint64_t>(value);
  }
  /// Bytes.
  std::uint64_t size(Word word, const Place& place, std::string_view field) const {
    const std::uint64_t value = count(word, place, field);
    if (value >> 52 != 0) fail(place, "'" + std::string(field) + "' is beyond 2^52 bytes");
    return value;
  }
  TextId text(Word word, const Place& place, std::string_view field) const {
    if (word.kind() != Kind::text) wrong(place, field, word, "a str");
    return static_cast<TextId>(word.payload());
  }

  // Anything

  Data data(Word word, const Place& place, std::size_t depth) {
    if (depth > limits_.nesting) fail(place, "nested too deeply, or within itself");
    spend(1, place);
    Data out;
    switch (word.kind()) {
      case Kind::special:
        if (word.payload() != kNone) out.value = word.payload() == kTrue;
        break;
      case Kind::integer:
        out.value = word.small();
        break;
      case Kind::big:
        out = integer_from_bytes(tree_.big_of(word));
        break;
      case Kind::real:
        out.value = tree_.real_of(word);
        break;
      case Kind::text:
        out.value = std::string(tree_.text_of(word));
        spend(std::get<std::string>(out.value).size() / 64, place);
        break;
      case Kind::list:
      case Kind::tuple: {
        std::vector<Data> items;
        for (const Word item : tree_.items(word)) items.push_back(data(item, place, depth + 1));
        if (word.kind() == Kind::list) {
          out.value = std::move(items);
        } else {
          out.value = DataTuple{std::move(items)};
        }
        break;
      }
      case Kind::dict:
        out.value = dict(word, place, depth);
        break;
    }
    return out;
  }

  DataDict dict(Word word, const Place& place, std::size_t depth) {
    DataDict made;
    const auto items = tree_.items(word);
    std::unordered_map<std::uint64_t, std::size_t> places;  // of keys, by their word: equal texts and ints have one
    for (std::size_t i = 0; i < items.size(); i += 2) {
      if (items[i].kind() == Kind::list || items[i].kind() == Kind::dict) {
        fail(place, "a dict's key is " + std::string(type_name(items[i])));
      }
      Data value = data(items[i + 1], place, depth + 1);
      const auto [at, added] = places.try_emplace(items[i].bits(), made.keys.size());
      if (!added) {
        made.values[at->second] = std::move(value);
        continue;
      }
      made.keys.push_back(data(items[i], place, depth + 1));
      made.values.push_back(std::move(value));
    }
    return made;
  }

  /// Further fields of a struct: gathered as words, then looked up, since most structs have the same ones.
  FieldsId further(const Place& place) {
    if (further_.empty()) return 0;
    bool plain = true;
    std::string key;
    for (const Word word : further_) {
      plain &= !word.is_container() && word.kind() != Kind::real && word.kind() != Kind::big;
      const std::uint64_t bits = word.bits();
      key.append(reinterpret_cast<const char*>(&bits), sizeof(bits));
    }
    if (plain) {
      const auto found = known_fields_.find(key);
      if (found != known_fields_.end()) return found->second;
    }
    Fields made;
    for (std::size_t i = 0; i < further_.size(); i += 2) {
      made.emplace_back(data(further_[i], place, 1), data(further_[i + 1], place, 1));
    }
    const auto id = static_cast<FieldsId>(out_.fields.size());
    out_.fields.push_back(std::move(made));
    if (plain) known_fields_.emplace(std::move(key), id);
    return id;
  }
  void keep(Word key, Word value, const Place& place) {
    if (key.is_container()) fail(place, "a key is " + std::string(type_name(key)));
    further_.push_back(key);
    further_.push_back(value);
  }

  // The model

  StackId stack(Word list, const Place& place) {
    if (list.kind() != Kind::list && list.kind() != Kind::tuple) wrong(place, "frames", list, "a list");
    const std::uint32_t known = known_[list.payload()];
    if (known != kNotYet) return known;
    const auto items = tree_.items(list);
    spend(items.size() + 1, place);
    std::vector<std::uint32_t> frames;
    frames.reserve(items.size());
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (items[i].is_container() && known_[items[i].payload()] != kNotYet && items[i].kind() == Kind::dict) {
        frames.push_back(known_[items[i].payload()]);
        continue;
      }
      frames.push_back(read_frame(items[i], Place{"frames", i, &place}));
      known_[items[i].payload()] = frames.back();
    }
    const StackId id = out_.stacks.add_stack(frames);
    known_[list.payload()] = id;
    return id;
  }

  std::uint32_t read_frame(Word dict_word, const Place& place) {
    Frame frame;
    bool named = false, in_file = false;
    // A frame may stand within a struct whose further fields are being gathered.
    std::vector<Word> outer;
    outer.swap(further_);
    for_fields(dict_word, place, [&](Word key, Word value) {
      switch (frame_names_[key]) {
        case 0:
          frame.name = text(value, place, "name");
          named = true;
          break;
        case 1:
          frame.filename = text(value, place, "filename");
          in_file = true;
          break;
        case 2:
          frame.line = integer(value, place, "line");
          break;
        default:
          keep(key, value, place);
      }
    });
    if (!named || !in_file) fail(place, named ? "there is no 'filename'" : "there is no 'name'");
    frame.more = further(place);
    further_.swap(outer);
    return out_.stacks.add_frame(frame);
  }

  void read_event(Word word, const Place& place, Event& event) {
    event.present = 0;
    further_.clear();
    bool acts = false;
    for_fields(word, place, [&](Word key, Word value) {
      switch (event_names_[key]) {
        case 0: {
          const TextId action = text(value, place, "action");
          const auto known = actions_.find(action);
          event.action = known == actions_.end() ? Action::other : known->second;
          if (event.action == Action::other) event.action_text = action;
          acts = true;
          break;
        }
        case 1:
          event.address = count(value, place, "addr");
          event.present |= Event::kAddress;
          break;
        case 2:
          event.size = size(value, place, "size");
          event.present |= Event::kSize;
          break;
        case 3:
          event.stream = integer(value, place, "stream");
          event.present |= Event::kStream;
          break;
        case 4:
          event.time_us = integer(value, place, "time_us");
          event.present |= Event::kTime;
          break;
        case 5:
          event.stack = stack(value, place);
          event.present |= Event::kFrames;
          break;
        case 6:
          event.device_free = count(value, place, "device_free");
          event.present |= Event::kDeviceFree;
          break;
        default:
          keep(key, value, place);
      }
    });
    if (!acts) fail(place, "there is no 'action'");
    const bool of_memory = event.action != Action::other && event.action != Action::snapshot;
    if (of_memory && (event.present & Event::kSize) == 0) fail(place, "there is no 'size'");
    if (of_memory && event.action != Action::oom && (event.present & Event::kAddress) == 0) {
      fail(place, "there is no 'addr'");
    }
    event.more = further(place);
  }

  void read_segment(Word word, const Place& place, Segment& segment) {
    segment.present = 0;
    bool has_address = false, has_size = false;
    Word blocks;
    further_.clear();
    for_fields(word, place, [&](Word key, Word value) {
      const auto present = [&](Present bit) { segment.present |= bit; };
      switch (segment_names_[key]) {
        case 0:
          segment.device = integer(value, place, "device");
          return present(Segment::kDevice);
        case 1:
          segment.address = count(value, place, "address");
          has_address = true;
          return;
        case 2:
          segment.total_size = size(value, place, "total_size");
          has_size = true;
          return;
        case 3:
          segment.allocated_size = size(value, place, "allocated_size");
          return present(Segment::kAllocated);
        case 4:
          segment.active_size = size(value, place, "active_size");
          return present(Segment::kActive);
        case 5:
          segment.requested_size = size(value, place, "requested_size");
          return present(Segment::kRequested);
        case 6:
          segment.stream = integer(value, place, "stream");
          return present(Segment::kStream);
        case 7:
          segment.type = text(value, place, "segment_type");
          return present(Segment::kType);
        case 8: {
          if (value.kind() != Kind::tuple && value.kind() != Kind::list)
            wrong(place, "segment_pool_id", value, "a tuple");
          const auto items = tree_.items(value);
          if (items.size() != 2) fail(place, "'segment_pool_id' is no pair");
          segment.pool = {integer(items[0], place, "segment_pool_id"), integer(items[1], place, "segment_pool_id")};
          return present(Segment::kPool);
        }
        case 9:
          if (value.kind() != Kind::special || value.payload() == kNone) wrong(place, "is_expandable", value, "a bool");
          segment.is_expandable = value.payload() == kTrue;
          return present(Segment::kExpandable);
        case 10:
          segment.stack = stack(value, place);
          return present(Segment::kFrames);
        case 11:
          blocks = value;
          return;
        default:
          keep(key, value, place);
      }
    });
    if (!has_address || !has_size) fail(place, has_address ? "there is no 'total_size'" : "there is no 'address'");
    if (blocks == Word()) fail(place, "there is no 'blocks'");
    segment.more = further(place);
    std::uint64_t end = segment.address;
    read_list(blocks, "blocks", &place, segment.blocks, [&](Word item, const Place& at, Block& block) {
      block.address = end;  // where the file does not say
      read_block(item, at, block);
      end = block.address + block.size;
    });
  }

  void read_block(Word word, const Place& place, Block& block) {
    block.present = 0;
    bool has_size = false, has_state = false;
    further_.clear();
    for_fields(word, place, [&](Word key, Word value) {
      switch (block_names_[key]) {
        case 0:
          block.address = count(value, place, "address");
          block.present |= Block::kAddress;
          break;
        case 1:
          block.size = size(value, place, "size");
          has_size = true;
          break;
        case 2:
          block.requested = size(value, place, "requested_size");
          block.present |= Block::kRequested;
          break;
        case 3: {
          const TextId state = text(value, place, "state");
          block.state = state == active_     ? BlockState::active_allocated
                        : state == pending_  ? BlockState::active_pending_free
                        : state == inactive_ ? BlockState::inactive
                                             : BlockState::other;
          if (block.state == BlockState::other) block.state_text = state;
          has_state = true;
          break;
        }
        case 4:
          block.stack = stack(value, place);
          block.present |= Block::kFrames;
          break;
        default:
          keep(key, value, place);
      }
    });
    if (!has_size || !has_state) fail(place, has_size ? "there is no 'state'" : "there is no 'size'");
    if ((block.present & Block::kRequested) == 0) block.requested = block.size;
    block.more = further(place);
  }

  void read_annotation(Word word, const Place& place, Annotation& annotation) {
    // These four are what is understood; anything of another type is kept as a further field.
    further_.clear();
    unsigned found = 0;
    for_fields(word, place, [&](Word key, Word value) {
      const std::uint8_t field = annotation_names_[key];
      if (field != kUnknown) found |= 1U << field;
      switch (field) {
        case 0:
          annotation.name = text(value, place, "name");
          break;
        case 1:
          annotation.stage = text(value, place, "stage");
          break;
        case 2:
          annotation.device = integer(value, place, "device");
          break;
        case 3:
          annotation.time_us = integer(value, place, "time_us");
          break;
        default:
          keep(key, value, place);
      }
    });
    if (found != 15) fail(place, "not all of 'name', 'stage', 'device' and 'time_us' are there");
    annotation.more = further(place);
  }

  DataTree& tree_;
  const ReadLimits& limits_;
  std::size_t budget_;
  static constexpr std::uint32_t kNotYet = 0xFFFFFFFF;
  /// By container: the stack that a list of frames is, the frame that a dict within one is.
  std::vector<std::uint32_t> known_;
  Names event_names_, segment_names_, block_names_, frame_names_, annotation_names_;
  std::unordered_map<TextId, Action> actions_;
  TextId active_ = 0, pending_ = 0, inactive_ = 0;
  std::vector<Word> further_;
  std::unordered_map<std::string, FieldsId> known_fields_;
  Snapshot out_;
};

}  // namespace

Snapshot from_tree(DataTree& tree, Word root, const ReadLimits& limits) {
  return FromTree(tree, limits).run(root);
}

}  // namespace warpmeter::reports::snapshot::detail
