#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

#include "kernels/collectives/detail/async_queue.hpp"
#include "kernels/collectives/detail/reduce.hpp"
#include "kernels/collectives/detail/shm_plan.hpp"
#include "kernels/collectives/detail/shm_segment.hpp"
#include "kernels/collectives/detail/shm_wait.hpp"
#include "kernels/collectives/detail/thread_team.hpp"
#include "kernels/collectives/shm.hpp"
#include "kernels/runtime/check.hpp"

namespace warpmeter::collectives {
namespace detail {
namespace {

void copy(char* destination, const char* source, std::int64_t bytes) {
  if (bytes > 0 && destination != source) std::memcpy(destination, source, static_cast<std::size_t>(bytes));
}

/// `streaming`: past the cache.
void copy_out(char* destination, const char* source, std::int64_t bytes, bool streaming) {
  if (streaming && bytes > 0 && destination != source) return copy_streaming(destination, source, bytes);
  copy(destination, source, bytes);
}

class ShmCommunicator final : public Communicator {
 public:
  ShmCommunicator(std::shared_ptr<ShmSegment> segment, int rank)
      : Communicator(rank, segment->world_size()),
        segment_(std::move(segment)),
        waiter_(*segment_, rank),
        team_(segment_->threads()),
        chunks_before_(static_cast<std::size_t>(segment_->threads())) {
    RankControl& mine = segment_->control(rank);
    WM_CHECK(mine.state.load() == static_cast<std::uint32_t>(RankState::absent),
             "rank " + std::to_string(rank) + " has joined before");
    mine.pid.store(static_cast<std::int32_t>(getpid()));
    mine.state.store(static_cast<std::uint32_t>(RankState::joined), std::memory_order_release);
    try {
      meet({});
    } catch (...) {
      leave();
      throw;
    }
  }
  ~ShmCommunicator() override {
    queue_.drain();
    leave();
  }

  [[nodiscard]] std::string_view backend() const noexcept override { return "shm"; }

  [[nodiscard]] CommunicatorBuffer allocate(std::size_t bytes) override {
    char* data = segment_->allocate(rank(), bytes);
    return {std::shared_ptr<void>(data, [segment = segment_](void* p) { segment->free(static_cast<char*>(p)); }),
            bytes};
  }

 protected:
  void run(const Collective& c) override {
    check_device(c);
    queue_.drain();
    execute(c);
  }
  Work start(const Collective& c) override {
    check_device(c);
    return queue_.submit([this, c] { execute(c); });
  }

 private:
  void check_device(const Collective& c) const {
    if (c.input.device.is_cpu()) return;
    throw CollectiveError(
        CollectiveFault::unsupported, {rank()},
        "shm: " + describe(c) + " on " + warpmeter::name(c.input.device) + "; this backend takes host memory");
  }
  void leave() noexcept {
    segment_->control(rank()).state.store(static_cast<std::uint32_t>(RankState::left), std::memory_order_release);
  }

  void execute(const Collective& c);
  /// Waits until all ranks have come this far.
  void meet(const Collective& c);
  CallRecord record_of(const Collective& c) const;
  void compare_records(const Collective& c) const;
  [[nodiscard]] bool goes_directly(const Collective& c) const;
  void one_shot(const Collective& c) const;
  void direct(const Collective& c, const ShmPlan& plan, int thread) const;
  void staged_reduction(const Collective& c, const ShmPlan& plan, int thread, std::uint32_t before) const;
  void staged_copies(const Collective& c, const ShmPlan& plan, int thread, std::uint32_t before) const;

  /// True where the output is other memory than the input and all ranks' arrays together leave the cache: what is
  /// written will not be found there anyway. In place the lines are there, having just been read.
  [[nodiscard]] bool streams(const Collective& c) const {
    const auto* input = static_cast<const char*>(c.input.data);
    const auto* output = static_cast<const char*>(c.output.data);
    if (input < output + c.output.bytes() && output < input + c.input.bytes()) return false;
    return (c.input.bytes() + c.output.bytes()) * static_cast<std::size_t>(world_size()) > cache_bytes_;
  }

  [[nodiscard]] const CallRecord& record(int r) const { return segment_->control(r).calls[side_]; }
  [[nodiscard]] char* input_of(int r) const { return segment_->at(record(r).input_offset); }
  [[nodiscard]] char* output_of(int r) const { return segment_->at(record(r).output_offset); }

  std::shared_ptr<ShmSegment> segment_;
  ShmWaiter waiter_;
  ThreadTeam team_;
  std::size_t cache_bytes_ = properties(Device::cpu()).last_level_cache_bytes;
  std::uint32_t meetings_ = 0;                ///< of this group so far
  unsigned side_ = 0;                         ///< of the two records, in turn
  std::vector<std::uint32_t> chunks_before_;  ///< a thread's, in earlier collectives
  AsyncQueue queue_;                          ///< last: its thread uses all of the above
};

void ShmCommunicator::meet(const Collective& c) {
  ++meetings_;
  segment_->control(rank()).arrived.publish(meetings_);
  waiter_.wait_all([this](int r) -> SharedFlag& { return segment_->control(r).arrived; }, meetings_, c);
}

CallRecord ShmCommunicator::record_of(const Collective& c) const {
  CallRecord record = {};
  record.kind = c.kind;
  record.op = c.op;
  record.dtype = storage_of(c.input.dtype);
  record.root = c.root;
  record.input_count = c.input.count;
  record.output_count = c.output.count;
  record.input_offset = segment_->heap_offset(c.input.data, c.input.bytes());
  record.output_offset = segment_->heap_offset(c.output.data, c.output.bytes());
  return record;
}

Collective call_of(const CallRecord& record) {
  Collective c;
  c.kind = record.kind;
  c.op = record.op;
  c.root = record.root;
  c.input = CollectiveBuffer(nullptr, record.input_count, record.dtype);
  c.output = CollectiveBuffer(nullptr, record.output_count, record.dtype);
  return c;
}

void ShmCommunicator::compare_records(const Collective& c) const {
  const auto same = [](const CallRecord& a, const CallRecord& b) {
    return a.kind == b.kind && a.op == b.op && a.dtype == b.dtype && a.root == b.root &&
           a.input_count == b.input_count && a.output_count == b.output_count;
  };
  std::vector<int> others;
  for (int r = 1; r < world_size(); ++r) {
    if (!same(record(0), record(r))) others.push_back(r);
  }
  if (others.empty()) return;
  static_cast<void>(c);
  waiter_.fail(CollectiveFault::mismatch, others,
               "the ranks disagree: rank 0 calls " + describe(call_of(record(0))) + ", rank " +
                   std::to_string(others.front()) + " " + describe(call_of(record(others.front()))) +
                   (others.size() > 1 ? "; unlike rank 0 are " + name_ranks(others) : ""));
}

bool ShmCommunicator::goes_directly(const Collective& c) const {
  if (world_size() == 1) return true;
  if (c.kind == CollectiveKind::broadcast) return record(c.root).input_offset != kNotShared;
  for (int r = 0; r < world_size(); ++r) {
    if (record(r).input_offset == kNotShared) return false;
    if (c.kind == CollectiveKind::all_reduce && record(r).output_offset == kNotShared) return false;
  }
  return true;
}

void ShmCommunicator::execute(const Collective& c) {
  if (segment_->failed()) segment_->throw_failure();
  RankControl& mine = segment_->control(rank());
  side_ ^= 1U;
  mine.calls[side_] = record_of(c);
  waiter_.expect_chunks(mine.calls[side_].input_offset == kNotShared);
  mine.busy.store(1 + side_, std::memory_order_release);

  const bool small = c.input.bytes() <= kOneShotBytes;
  if (small && c.input.count > 0 && (c.kind != CollectiveKind::broadcast || c.root == rank())) {
    copy(segment_->one_shot(rank(), side_), static_cast<const char*>(c.input.data),
         static_cast<std::int64_t>(c.input.bytes()));
  }
  meet(c);
  compare_records(c);
  if (small) {
    if (c.input.count > 0) one_shot(c);
  } else {
    const ShmPlan plan(c, world_size(), segment_->threads(), segment_->chunk_bytes());
    if (goes_directly(c)) {
      team_.run(plan.threads(), [&](int thread) { direct(c, plan, thread); });
      meet(c);  // nobody reads this rank's input or writes its output any more
    } else {
      const bool reduces = c.kind == CollectiveKind::all_reduce || c.kind == CollectiveKind::reduce_scatter;
      team_.run(plan.threads(), [&](int thread) {
        std::uint32_t& before = chunks_before_[static_cast<std::size_t>(thread)];
        if (reduces) {
          staged_reduction(c, plan, thread, before);
        } else {
          staged_copies(c, plan, thread, before);
        }
        before += static_cast<std::uint32_t>(plan.chunks(thread));
      });
    }
  }
  mine.busy.store(0, std::memory_order_release);
}

void ShmCommunicator::one_shot(const Collective& c) const {
  const auto bytes = static_cast<std::int64_t>(c.input.bytes());
  auto* output = static_cast<char*>(c.output.data);
  if (c.kind == CollectiveKind::broadcast) return copy(output, segment_->one_shot(c.root, side_), bytes);
  if (c.kind == CollectiveKind::all_gather) {
    for (int r = 0; r < world_size(); ++r) copy(output + r * bytes, segment_->one_shot(r, side_), bytes);
    return;
  }
  const std::int64_t skip = c.kind == CollectiveKind::reduce_scatter ? rank() * bytes / world_size() : 0;
  const char* sources[kMaxRanks];
  for (int r = 0; r < world_size(); ++r) sources[r] = segment_->one_shot(r, side_) + skip;
  reduce({sources, world_size(), &output, 1, c.output.count, c.output.dtype, c.op});
}

void ShmCommunicator::direct(const Collective& c, const ShmPlan& plan, int thread) const {
  const std::int64_t element = plan.element_bytes();
  const bool alone = world_size() == 1;
  auto* own_input = static_cast<char*>(c.input.data);
  auto* own_output = static_cast<char*>(c.output.data);
  if (c.kind == CollectiveKind::broadcast) {
    const ShmPlan::Piece piece = plan.share_of(0, thread);
    const char* source = c.root == rank() ? own_input : input_of(c.root);
    return copy_out(own_output + piece.begin * element, source + piece.begin * element, piece.count * element,
                    streams(c));
  }
  if (c.kind == CollectiveKind::all_gather) {
    for (int i = 0; i < world_size(); ++i) {
      const int r = (rank() + i) % world_size();  // each rank begins with another one's memory
      const ShmPlan::Piece piece = plan.share_of(r, thread);
      const char* source = r == rank() ? own_input : input_of(r);
      copy_out(own_output + (plan.block_begin(r) + piece.begin) * element, source + piece.begin * element,
               piece.count * element, streams(c));
    }
    return;
  }
  const ShmPlan::Piece piece = plan.share_of(rank(), thread);
  const std::int64_t at = (plan.block_begin(rank()) + piece.begin) * element;
  const char* sources[kMaxRanks];
  char* destinations[kMaxRanks];
  for (int r = 0; r < world_size(); ++r) sources[r] = (alone ? own_input : input_of(r)) + at;
  if (c.kind == CollectiveKind::reduce_scatter) {
    destinations[0] = own_output + piece.begin * element;
    return reduce({sources, world_size(), destinations, 1, piece.count, c.input.dtype, c.op, streams(c) ? 1 : 0});
  }
  for (int r = 0; r < world_size(); ++r) destinations[r] = (alone ? own_output : output_of(r)) + at;
  reduce({sources, world_size(), destinations, world_size(), piece.count, c.input.dtype, c.op,
          streams(c) ? world_size() : 0});
}

void ShmCommunicator::staged_reduction(const Collective& c, const ShmPlan& plan, int thread,
                                       std::uint32_t before) const {
  const std::int64_t element = plan.element_bytes(), part = plan.part_bytes();
  const auto* input = static_cast<const char*>(c.input.data);
  auto* output = static_cast<char*>(c.output.data);
  const bool gathers = c.kind == CollectiveKind::all_reduce;
  const bool past_cache = streams(c);
  ChannelControl& mine = segment_->channel(thread, rank());
  const auto written = [&](int r) -> SharedFlag& { return segment_->channel(thread, r).written; };
  const auto reduced = [&](int r) -> SharedFlag& { return segment_->channel(thread, r).reduced; };
  const auto count_of = [before](std::int64_t chunks) { return before + static_cast<std::uint32_t>(chunks); };

  // Part p of a slot is the chunk of block p. A rank's own part stays in its input; its place in the slot takes the
  // result, for the others to copy out. They have done so before they put their next chunk but one, which is waited
  // for before the place is written again.
  const auto put = [&](std::int64_t k) {
    char* slot = segment_->slot(thread, rank(), static_cast<unsigned>(k & 1));
    for (int p = 0; p < world_size(); ++p) {
      if (p == rank()) continue;
      const ShmPlan::Piece piece = plan.chunk_of(p, thread, k);
      copy(slot + p * part, input + (plan.block_begin(p) + piece.begin) * element, piece.count * element);
    }
    mine.written.publish(count_of(k + 1));
  };

  const std::int64_t chunks = plan.chunks(thread);
  if (chunks > 0) put(0);
  for (std::int64_t k = 0; k < chunks; ++k) {
    const auto side = static_cast<unsigned>(k & 1);
    if (k + 1 < chunks) {
      if (!gathers) waiter_.wait_all(reduced, count_of(k), c);  // chunk k - 1, whose slot is next
      put(k + 1);
    }
    waiter_.wait_all(written, count_of(k + 1), c);
    const ShmPlan::Piece own = plan.chunk_of(rank(), thread, k);
    const std::int64_t at = (plan.block_begin(rank()) + own.begin) * element;
    const char* sources[kMaxRanks];
    for (int r = 0; r < world_size(); ++r) {
      sources[r] = r == rank() ? input + at : segment_->slot(thread, r, side) + rank() * part;
    }
    char* destinations[2] = {gathers ? output + at : output + own.begin * element,
                             segment_->slot(thread, rank(), side) + rank() * part};
    reduce({sources, world_size(), destinations, gathers ? 2 : 1, own.count, c.input.dtype, c.op, past_cache ? 1 : 0});
    mine.reduced.publish(count_of(k + 1));
    if (!gathers) continue;
    for (int i = 1; i < world_size(); ++i) {
      const int p = (rank() + i) % world_size();
      waiter_.wait_one(reduced(p), reduced(rank()), p, count_of(k + 1), c);
      const ShmPlan::Piece piece = plan.chunk_of(p, thread, k);
      copy_out(output + (plan.block_begin(p) + piece.begin) * element, segment_->slot(thread, p, side) + p * part,
               piece.count * element, past_cache);
    }
  }
}

void ShmCommunicator::staged_copies(const Collective& c, const ShmPlan& plan, int thread, std::uint32_t before) const {
  const std::int64_t element = plan.element_bytes();
  const auto* input = static_cast<const char*>(c.input.data);
  auto* output = static_cast<char*>(c.output.data);
  const bool gathers = c.kind == CollectiveKind::all_gather;
  const bool past_cache = streams(c);
  const bool gives = gathers || c.root == rank();
  ChannelControl& mine = segment_->channel(thread, rank());
  const auto copied = [&](int r) -> SharedFlag& { return segment_->channel(thread, r).reduced; };
  const auto count_of = [before](std::int64_t chunks) { return before + static_cast<std::uint32_t>(chunks); };
  const auto block_of = [gathers](int r) { return gathers ? r : 0; };

  const auto put = [&](std::int64_t k) {
    const ShmPlan::Piece piece = plan.chunk_of(block_of(rank()), thread, k);
    copy(segment_->slot(thread, rank(), static_cast<unsigned>(k & 1)), input + piece.begin * element,
         piece.count * element);
    mine.written.publish(count_of(k + 1));
  };
  /// The chunk of rank r from `source`, where it begins.
  const auto take = [&](int r, std::int64_t k, const char* source) {
    const ShmPlan::Piece piece = plan.chunk_of(block_of(r), thread, k);
    copy_out(output + (plan.block_begin(block_of(r)) + piece.begin) * element, source, piece.count * element,
             past_cache);
  };

  const std::int64_t chunks = plan.chunks(thread);
  if (gives && chunks > 0) put(0);
  for (std::int64_t k = 0; k < chunks; ++k) {
    if (gives && k + 1 < chunks) {
      waiter_.wait_all(copied, count_of(k), c);  // chunk k - 1, whose slot is next
      put(k + 1);
    }
    for (int i = 0; i < world_size(); ++i) {
      const int r = (rank() + i) % world_size();
      if (r == rank() && gives) {
        take(r, k, input + plan.chunk_of(block_of(r), thread, k).begin * element);
      } else if (gathers || r == c.root) {
        SharedFlag& flag = segment_->channel(thread, r).written;
        waiter_.wait_one(flag, mine.written, r, count_of(k + 1), c);
        take(r, k, segment_->slot(thread, r, static_cast<unsigned>(k & 1)));
      }
    }
    mine.reduced.publish(count_of(k + 1));
  }
  mine.written.publish(count_of(chunks));  // of ranks that give nothing too: counts go on from here
}

}  // namespace
}  // namespace detail

ShmWorld::ShmWorld(const ShmOptions& options) : segment_(std::make_shared<detail::ShmSegment>(options)) {}

ShmWorld ShmWorld::open(const std::string& path) {
  return ShmWorld(std::make_shared<detail::ShmSegment>(path));
}

std::string ShmWorld::path() const {
  return segment_->path();
}

int ShmWorld::world_size() const noexcept {
  return segment_->world_size();
}

int ShmWorld::threads() const noexcept {
  return segment_->threads();
}

std::unique_ptr<Communicator> ShmWorld::join(int rank) const {
  WM_CHECK(rank >= 0 && rank < world_size(), "rank " + std::to_string(rank));
  return std::make_unique<detail::ShmCommunicator>(segment_, rank);
}

void ShmWorld::report_failure(int rank, const std::string& reason) const {
  segment_->fail(CollectiveFault::peer_died, {rank}, "rank " + std::to_string(rank) + " has failed: " + reason);
}

std::string ShmWorld::activity(int rank) const {
  const detail::RankControl& control = segment_->control(rank);
  const std::uint32_t busy = control.busy.load(std::memory_order_acquire);
  return busy == 0 ? "" : describe(detail::call_of(control.calls[busy - 1]));
}

}  // namespace warpmeter::collectives
