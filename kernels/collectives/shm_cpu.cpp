#include <algorithm>
#include <array>
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

/// The way of one rank's thread through the chunks of a staged call, and the slots that it puts them in.
class StagedChannel {
 public:
  /// `before`: chunks of earlier calls, in all flags.
  StagedChannel(const ShmSegment& segment, const ShmWaiter& waiter, const Collective& c, int rank, int thread,
                std::uint32_t before)
      : segment_(segment), waiter_(waiter), c_(c), rank_(rank), thread_(thread), before_(before) {
    held_.fill(kNone);
  }

  using Flag = SharedFlag ChannelControl::*;
  [[nodiscard]] ChannelControl& of(int r) const { return segment_.channel(thread_, r); }
  [[nodiscard]] std::uint32_t count_of(std::int64_t chunks) const {
    return before_ + static_cast<std::uint32_t>(chunks);
  }
  /// This rank has done so many chunks.
  void publish(Flag flag, std::int64_t chunks) const { (of(rank_).*flag).publish(count_of(chunks)); }
  /// Whether `r`, or every other rank, has done so many chunks.
  [[nodiscard]] bool reached(Flag flag, std::int64_t chunks, int r) const {
    return (of(r).*flag).reached(count_of(chunks));
  }
  [[nodiscard]] bool reached(Flag flag, std::int64_t chunks) const {
    for (int r = 0; r < segment_.world_size(); ++r) {
      if (r != rank_ && !reached(flag, chunks, r)) return false;
    }
    return true;
  }
  void wait(Flag flag, std::int64_t chunks) const {
    waiter_.wait_all([this, flag](int r) -> SharedFlag& { return of(r).*flag; }, count_of(chunks), c_);
  }
  void wait(Flag flag, std::int64_t chunks, int r) const {
    waiter_.wait_one(of(r).*flag, of(rank_).*flag, r, count_of(chunks), c_);
  }

  /// The first of this rank's slots that nobody needs any more: few of them, while all keep up, so that they stay in
  /// the cache. nullptr: the others have not come so far.
  [[nodiscard]] char* free_slot(std::int64_t chunk) {
    for (int slot = 0; slot < kSlots; ++slot) {
      std::int64_t& held = held_[static_cast<std::size_t>(slot)];
      if (held != kNone && !reached(&ChannelControl::taken, held + 1)) continue;
      held = chunk;
      of(rank_).slot_of[chunk % kSlots].store(static_cast<std::uint8_t>(slot), std::memory_order_relaxed);
      return segment_.slot(thread_, rank_, slot);
    }
    return nullptr;
  }
  void wait_for_slot() const { wait(&ChannelControl::taken, *std::min_element(held_.begin(), held_.end()) + 1); }
  /// Where `r` has a chunk that it has written.
  [[nodiscard]] char* slot_with(int r, std::int64_t chunk) const {
    return segment_.slot(thread_, r, of(r).slot_of[chunk % kSlots].load(std::memory_order_relaxed));
  }

 private:
  static constexpr std::int64_t kNone = -1;

  const ShmSegment& segment_;
  const ShmWaiter& waiter_;
  const Collective& c_;
  int rank_, thread_;
  std::uint32_t before_;
  std::array<std::int64_t, kSlots> held_ = {};  ///< chunk in each
};

// Each step does what needs nobody else, if there is such a thing, and waits for the oldest chunk where not: what the
// others need to get that far is there.

void ShmCommunicator::staged_reduction(const Collective& c, const ShmPlan& plan, int thread,
                                       std::uint32_t before) const {
  const std::int64_t element = plan.element_bytes(), part = plan.part_bytes();
  const auto* input = static_cast<const char*>(c.input.data);
  auto* output = static_cast<char*>(c.output.data);
  const bool gathers = c.kind == CollectiveKind::all_reduce;
  const bool past_cache = streams(c);
  StagedChannel channel(*segment_, waiter_, c, rank(), thread, before);
  constexpr auto kWritten = &ChannelControl::written, kReduced = &ChannelControl::reduced,
                 kTaken = &ChannelControl::taken;

  // Part p of a slot is the chunk of block p. A rank's own part stays in its input; its place in the slot takes the
  // result, for the others to copy out.
  const auto put = [&](std::int64_t k) {
    char* slot = channel.free_slot(k);
    if (slot == nullptr) return false;
    for (int p = 0; p < world_size(); ++p) {
      if (p == rank()) continue;
      const ShmPlan::Piece piece = plan.chunk_of(p, thread, k);
      copy(slot + p * part, input + (plan.block_begin(p) + piece.begin) * element, piece.count * element);
    }
    channel.publish(kWritten, k + 1);
    return true;
  };
  const auto reduce_own = [&](std::int64_t k) {
    const ShmPlan::Piece own = plan.chunk_of(rank(), thread, k);
    const std::int64_t at = (plan.block_begin(rank()) + own.begin) * element;
    const char* sources[kMaxRanks];
    for (int r = 0; r < world_size(); ++r) {
      sources[r] = r == rank() ? input + at : channel.slot_with(r, k) + rank() * part;
    }
    char* destinations[2] = {gathers ? output + at : output + own.begin * element,
                             channel.slot_with(rank(), k) + rank() * part};
    reduce({sources, world_size(), destinations, gathers ? 2 : 1, own.count, c.input.dtype, c.op, past_cache ? 1 : 0});
    channel.publish(gathers ? kReduced : kTaken, k + 1);
  };
  const auto take = [&](std::int64_t k) {
    for (int i = 1; i < world_size(); ++i) {
      const int p = (rank() + i) % world_size();
      const ShmPlan::Piece piece = plan.chunk_of(p, thread, k);
      copy_out(output + (plan.block_begin(p) + piece.begin) * element, channel.slot_with(p, k) + p * part,
               piece.count * element, past_cache);
    }
    channel.publish(kTaken, k + 1);
  };

  const std::int64_t chunks = plan.chunks(thread);
  std::int64_t put_so_far = 0, reduced = 0, taken = 0;
  while ((gathers ? taken : reduced) < chunks) {
    const bool puts = put_so_far < chunks;
    if (gathers && taken < reduced && channel.reached(kReduced, taken + 1)) {
      take(taken++);
    } else if (puts && put_so_far <= reduced + 1 && put(put_so_far)) {  // one ahead, for the others to go on with
      ++put_so_far;
    } else if (reduced < put_so_far && channel.reached(kWritten, reduced + 1)) {
      reduce_own(reduced++);
    } else if (puts && put(put_so_far)) {
      ++put_so_far;
    } else if (gathers && taken < reduced) {
      channel.wait(kReduced, taken + 1);
    } else if (reduced < put_so_far) {
      channel.wait(kWritten, reduced + 1);
    } else {
      channel.wait_for_slot();
    }
  }
  if (!gathers) channel.publish(kReduced, chunks);  // counts go on from here
}

void ShmCommunicator::staged_copies(const Collective& c, const ShmPlan& plan, int thread, std::uint32_t before) const {
  const std::int64_t element = plan.element_bytes();
  const auto* input = static_cast<const char*>(c.input.data);
  auto* output = static_cast<char*>(c.output.data);
  const bool gathers = c.kind == CollectiveKind::all_gather;
  const bool past_cache = streams(c);
  const bool gives = gathers || c.root == rank();
  StagedChannel channel(*segment_, waiter_, c, rank(), thread, before);
  constexpr auto kWritten = &ChannelControl::written;
  const auto block_of = [gathers](int r) { return gathers ? r : 0; };

  const auto put = [&](std::int64_t k) {
    char* slot = channel.free_slot(k);
    if (slot == nullptr) return false;
    const ShmPlan::Piece piece = plan.chunk_of(block_of(rank()), thread, k);
    copy(slot, input + piece.begin * element, piece.count * element);
    channel.publish(kWritten, k + 1);
    return true;
  };
  const auto take = [&](std::int64_t k) {
    for (int i = 0; i < world_size(); ++i) {
      const int r = (rank() + i) % world_size();
      const bool own = r == rank() && gives;
      if (!own && !gathers && r != c.root) continue;
      const ShmPlan::Piece piece = plan.chunk_of(block_of(r), thread, k);
      copy_out(output + (plan.block_begin(block_of(r)) + piece.begin) * element,
               own ? input + piece.begin * element : channel.slot_with(r, k), piece.count * element, past_cache);
    }
    channel.publish(&ChannelControl::taken, k + 1);
  };
  const auto others_have = [&](std::int64_t k) {
    return gathers ? channel.reached(kWritten, k + 1) : gives || channel.reached(kWritten, k + 1, c.root);
  };

  const std::int64_t chunks = plan.chunks(thread);
  std::int64_t put_so_far = 0, taken = 0;
  while (taken < chunks) {
    const bool puts = gives && put_so_far < chunks;
    if (puts && put_so_far <= taken + 1 && put(put_so_far)) {
      ++put_so_far;
    } else if ((!gives || taken < put_so_far) && others_have(taken)) {
      take(taken++);
    } else if (puts && put(put_so_far)) {
      ++put_so_far;
    } else if (gives && taken == put_so_far) {
      channel.wait_for_slot();
    } else if (gathers) {
      channel.wait(kWritten, taken + 1);
    } else {
      channel.wait(kWritten, taken + 1, c.root);
    }
  }
  channel.publish(&ChannelControl::reduced, chunks);  // of these nobody has seen; counts go on from here
  if (!gives) channel.publish(kWritten, chunks);
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
