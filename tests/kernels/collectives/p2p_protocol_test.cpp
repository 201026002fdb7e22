// The device code of the p2p backend, compiled for the host: ranks are groups of threads, a GPU's memory is the heap,
// its loads and stores are C++ atomics of the same strength. Under ThreadSanitizer this is a check of the protocol's
// ordering; the random pauses find schedules.
// Over 600 lines: one world of ranks, arenas and expectations runs every kind of call, so that any can follow any.

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace {
void let_others_go_first();
}
#define WM_P2P_BEFORE_FLAG() let_others_go_first()

#include "kernels/collectives/cuda/p2p_bulk.hpp"
#include "kernels/collectives/cuda/p2p_small.hpp"
#include "tests/kernels/collectives/values.hpp"

namespace {

/// Another thread's turn. Asleep, not yielding: Linux 6.18 takes a yielding thread's share of the core away, and beside
/// busy programs one that yields at every flag does not come on for a minute.
void step_aside(std::chrono::microseconds time) {
  std::this_thread::sleep_for(time);
}

/// Now and then another thread's turn, at places that the thread's seed picks.
thread_local std::uint64_t schedule = 0;
void let_others_go_first() {
  schedule = warpmeter::collectives::values::hash(schedule, 1);
  if (schedule % 32 == 0) step_aside(std::chrono::microseconds(schedule % 512 == 0 ? schedule / 512 % 300 : 1));
}

}  // namespace

namespace warpmeter::collectives::p2p {
namespace {

/// A block's threads meet here.
class BlockBarrier {
 public:
  explicit BlockBarrier(int threads) : barrier_(threads) {}
  void sync() { barrier_.arrive_and_wait(); }
  bool all(bool mine) {
    if (!mine) refusals_.fetch_add(1);
    barrier_.arrive_and_wait();
    const bool result = refusals_.load() == 0;
    barrier_.arrive_and_wait();
    if (!mine) refusals_.fetch_sub(1);
    barrier_.arrive_and_wait();
    return result;
  }

 private:
  std::barrier<> barrier_;
  std::atomic<int> refusals_{0};
};

/// A thread's clock tells how often it has looked at it, so that a busy machine makes no time pass: a look comes after
/// Block::kSpinsPerLook pauses of the thread itself. It can be stopped for all.
class HostClock {
 public:
  static void stop() { stopped_.store(true); }
  static void resume() { stopped_.store(false); }
  [[nodiscard]] static std::uint64_t now_ns() {
    if (!stopped_.load()) now_ns_ += kLookNs;
    return now_ns_;
  }

 private:
  static constexpr std::uint64_t kLookNs = 10'000'000;  // about as long on an idle machine
  static inline std::atomic<bool> stopped_{false};
  static inline thread_local std::uint64_t now_ns_ = 1;  // 0 would be no deadline yet
};

class HostCta {
 public:
  HostCta(int thread, int threads, int block, int blocks, BlockBarrier& barrier)
      : thread_(thread), threads_(threads), block_(block), blocks_(blocks), barrier_(barrier) {}
  [[nodiscard]] int thread() const { return thread_; }
  [[nodiscard]] int threads() const { return threads_; }
  [[nodiscard]] int block() const { return block_; }
  [[nodiscard]] int blocks() const { return blocks_; }
  void sync() {
    let_others_go_first();
    barrier_.sync();
  }
  bool all(bool mine) {
    let_others_go_first();
    return barrier_.all(mine);
  }
  [[nodiscard]] static std::uint64_t now_ns() { return HostClock::now_ns(); }
  [[nodiscard]] static bool polls_host() { return true; }
  static void pause() {
    thread_local unsigned pauses = 0;
    if (++pauses % 8 == 0) step_aside(std::chrono::microseconds(1));
  }

 private:
  int thread_, threads_, block_, blocks_;
  BlockBarrier& barrier_;
};

enum class Protocol { small, bulk };

/// One call of all ranks.
struct Step {
  Protocol protocol = Protocol::small;
  CollectiveKind kind = CollectiveKind::all_reduce;
  ReduceOp op = ReduceOp::sum;
  DType dtype = DType::fp32;
  int root = 0;
  std::int64_t count = 0;  ///< elements of a part
  bool in_place = false;
  unsigned shared = ~0U;  ///< a bit a rank: its arrays can be reached by the others
  bool may_pull = false;
  int shift = 0;  ///< of the arrays' addresses, in bytes
  int blocks = 2;
  std::vector<std::int64_t> pieces{};  ///< all_gather_v of so many bytes of each rank; empty: another call
};

constexpr int kThreads = 4;
constexpr int kBlocks = 2;
constexpr int kStageBytes = 64;
constexpr std::int64_t kLargestBytes = 6000;

struct RankMemory {
  explicit RankMemory(const ArenaLayout& layout)
      : arena(static_cast<char*>(std::aligned_alloc(4096, static_cast<std::size_t>(layout.bytes)))),
        arrays(2 * (kMaxRanks * kLargestBytes + 128)) {
    std::memset(arena.get() + layout.descriptors, 0, static_cast<std::size_t>(layout.bytes - layout.descriptors));
    for (std::int64_t side = 0; side < 2; ++side) {
      for (int source = 0; source < layout.world_size; ++source) {
        for (int block = 0; block < kBlocks; ++block) {
          const std::int64_t slot = (side * layout.world_size + source) * kMaxBlocks + block;
          std::memset(arena.get() + slot * kBlockPackets * 16, 0, kBlockPackets * 16);
        }
      }
    }
  }
  struct Free {
    void operator()(char* p) const { std::free(p); }
  };
  std::unique_ptr<char, Free> arena;
  std::vector<char> arrays;
  P2pStatus status = {};
};

/// Ranks as threads. run() does the steps on every rank in turn, as a stream would its kernels.
class World {
 public:
  explicit World(int ranks, std::uint64_t seed) : layout_(ArenaLayout::of(ranks, kStageBytes)), seed_(seed) {
    for (int r = 0; r < ranks; ++r) ranks_.push_back(std::make_unique<RankMemory>(layout_));
  }

  std::uint64_t timeout_ns = 60'000'000'000;
  std::uint32_t clear_mask = kClearMask;
  int late_rank = -1;  ///< comes after the others to its first step of a run
  /// From when all that call it have come to this step, no time passes before, however long a busy machine takes to get
  /// them there: the timeout finds those that do not come and no others. 0: time passes from the start.
  std::size_t time_passes_from_step = 0;
  [[nodiscard]] int size() const { return layout_.world_size; }
  [[nodiscard]] P2pStatus& status(int rank) { return ranks_[static_cast<std::size_t>(rank)]->status; }
  [[nodiscard]] BlockState& state(int rank, int block) {
    return reinterpret_cast<BlockState*>(ranks_[static_cast<std::size_t>(rank)]->arena.get() + layout_.state)[block];
  }
  /// As after so many calls.
  void age(std::uint32_t small, std::uint32_t bulk, std::uint32_t chunks) {
    for (int r = 0; r < size(); ++r) {
      for (int b = 0; b < kBlocks; ++b) state(r, b) = {small, bulk, chunks, 0};
      for (const std::int64_t flags : {layout_.end_flags, layout_.stage_a_flags, layout_.stage_b_flags}) {
        auto* words = reinterpret_cast<std::uint32_t*>(ranks_[static_cast<std::size_t>(r)]->arena.get() + flags);
        std::fill(words, words + size() * kMaxBlocks, flags == layout_.end_flags ? bulk : chunks);
      }
    }
  }

  /// steps_of(rank): what it calls. Returns what was wrong, empty when all results were right.
  std::string run(const std::function<std::vector<Step>(int)>& steps_of, bool check = true) {
    std::atomic<int> starters = 0;
    if (time_passes_from_step > 0) {
      for (int rank = 0; rank < size(); ++rank) {
        if (steps_of(rank).size() > time_passes_from_step) starters += kBlocks * kThreads;
      }
      HostClock::stop();
    }
    std::vector<std::thread> threads;
    std::vector<std::unique_ptr<BlockBarrier>> blocks;
    std::vector<std::unique_ptr<std::barrier<>>> grids;
    for (int rank = 0; rank < size(); ++rank) {
      grids.push_back(std::make_unique<std::barrier<>>(kBlocks * kThreads));
      for (int block = 0; block < kBlocks; ++block) {
        blocks.push_back(std::make_unique<BlockBarrier>(kThreads));
        for (int thread = 0; thread < kThreads; ++thread) {
          threads.emplace_back([this, rank, block, thread, check, steps = steps_of(rank), barrier = blocks.back().get(),
                                grid = grids.back().get(), &starters] {
            HostCta cta(thread, kThreads, block, kBlocks, *barrier);
            schedule = seed_ * 1000 + static_cast<std::uint64_t>((rank * kBlocks + block) * kThreads + thread);
            if (rank == late_rank) std::this_thread::sleep_for(std::chrono::milliseconds(30));
            for (std::size_t i = 0; i < steps.size(); ++i) {
              if (i > 0 && i == time_passes_from_step && --starters == 0) HostClock::resume();
              one(steps[i], i, rank, cta, *barrier, *grid, check);
            }
          });
        }
      }
    }
    for (std::thread& thread : threads) thread.join();
    HostClock::resume();
    ++runs_;  // the next one has other data
    return wrong_;
  }

 private:
  [[nodiscard]] bool reduces(const Step& s) const {
    return s.kind == CollectiveKind::all_reduce || s.kind == CollectiveKind::reduce_scatter;
  }
  [[nodiscard]] int input_parts(const Step& s) const { return s.kind == CollectiveKind::reduce_scatter ? size() : 1; }
  [[nodiscard]] int output_parts(const Step& s) const { return s.kind == CollectiveKind::all_gather ? size() : 1; }
  [[nodiscard]] std::uint64_t data_seed(std::size_t step, int rank) const {
    return (runs_ * 1000 + step) * 16 + static_cast<std::uint64_t>(rank);
  }

  char* input(const Step& s, int rank) {
    char* base = ranks_[static_cast<std::size_t>(rank)]->arrays.data();
    base += (64 - reinterpret_cast<std::uintptr_t>(base) % 64) + static_cast<std::size_t>(s.shift);
    const auto bytes = s.count * static_cast<std::int64_t>(size_of(s.dtype));
    return s.in_place && s.kind == CollectiveKind::all_gather ? base + rank * bytes : base;
  }
  char* output(const Step& s, int rank) {
    const auto bytes = s.count * static_cast<std::int64_t>(size_of(s.dtype));
    if (!s.in_place) {
      // Not alike to the input: by another odd amount where the arrays are shifted.
      char* base = ranks_[static_cast<std::size_t>(rank)]->arrays.data() + kMaxRanks * kLargestBytes + 64;
      return base + (64 - reinterpret_cast<std::uintptr_t>(base) % 64) + static_cast<std::size_t>(s.shift) * 3;
    }
    if (s.kind == CollectiveKind::all_gather) return input(s, rank) - rank * bytes;
    return s.kind == CollectiveKind::reduce_scatter ? input(s, rank) + rank * bytes : input(s, rank);
  }

  P2pCall call_of(const Step& s, int rank) {
    P2pCall call = {};
    Collective c;
    c.kind = s.kind;
    c.op = s.op;
    c.root = s.root;
    c.input.dtype = s.dtype;
    call.kind = s.kind;
    call.op = s.op;
    call.rank = rank;
    call.world_size = size();
    call.root = s.root;
    call.bytes = s.count * static_cast<std::int64_t>(size_of(s.dtype));
    call.signature = signature_of(c, call.bytes);
    call.input = input(s, rank);
    call.output = output(s, rank);
    for (int r = 0; r < size(); ++r) {
      call.arenas[r] = ranks_[static_cast<std::size_t>(r)]->arena.get();
      if ((s.shared >> rank & 1U) == 0) continue;
      call.input_at[r] = reinterpret_cast<std::uint64_t>(call.input);
      call.output_at[r] = reinterpret_cast<std::uint64_t>(call.output);
    }
    call.layout = layout_;
    call.status = &ranks_[static_cast<std::size_t>(rank)]->status;
    call.timeout_ns = timeout_ns;
    call.clear_mask = clear_mask;
    call.may_pull = s.may_pull;
    const std::int64_t packets = std::max<std::int64_t>(1, (call.bytes + kPacketBytes - 1) / kPacketBytes);
    call.block_packets = (packets + s.blocks - 1) / s.blocks;
    return call;
  }

  /// Where rank `of`'s piece lies on `rank`: elsewhere on each, with room around it.
  char* piece(const Step& s, int rank, int of) {
    char* base = ranks_[static_cast<std::size_t>(rank)]->arrays.data();
    base += 64 - reinterpret_cast<std::uintptr_t>(base) % 64;
    return base + (of + rank) % size() * (kLargestBytes + 64) + 16 + s.shift * (1 + of + 2 * rank) % 16;
  }
  static std::uint64_t byte_of(std::uint64_t seed, std::int64_t at) {
    return values::hash(seed, static_cast<std::uint64_t>(at)) & 0xFFU;
  }

  P2pCall call_of_pieces(const Step& s, int rank) {
    Step own = s;
    own.kind = CollectiveKind::all_gather;
    own.dtype = DType::fp32;
    own.count = 0;
    P2pCall call = call_of(own, rank);
    std::vector<CollectiveBuffer> all;
    for (const std::int64_t bytes : s.pieces) all.emplace_back(nullptr, bytes / 4, DType::fp32);
    call.pieces = true;
    call.signature = signature_of_pieces(all);
    call.bytes = s.pieces[static_cast<std::size_t>(rank)];
    call.input = call.output = piece(s, rank, rank);
    for (int r = 0; r < size(); ++r) {
      const auto place = reinterpret_cast<std::uint64_t>(piece(s, rank, r));
      call.input_at[r] = place;
      const bool empty = s.pieces[static_cast<std::size_t>(r)] == 0;
      call.output_at[r] = (s.shared >> rank & 1U) == 0 ? 0 : empty ? 1 : place;
    }
    return call;
  }

  /// Fills this rank's own piece and 8 bytes around each.
  void prepare_pieces(const Step& s, std::size_t number, int rank) {
    for (int r = 0; r < size(); ++r) {
      const std::int64_t bytes = s.pieces[static_cast<std::size_t>(r)];
      std::memset(piece(s, rank, r) - 8, 0x5A, static_cast<std::size_t>(bytes + 16));
      for (std::int64_t i = 0; i < bytes && r == rank; ++i) {
        piece(s, rank, r)[i] = static_cast<char>(byte_of(data_seed(number, r), i));
      }
    }
  }

  void verify_pieces(const Step& s, std::size_t number, int rank) {
    for (int r = 0; r < size(); ++r) {
      const std::int64_t bytes = s.pieces[static_cast<std::size_t>(r)];
      const char* place = piece(s, rank, r);
      for (std::int64_t i = -8; i < bytes + 8; ++i) {
        const bool within = i >= 0 && i < bytes;
        const auto want = static_cast<char>(within ? byte_of(data_seed(number, r), i) : 0x5A);
        if (place[i] == want) continue;
        const std::lock_guard lock(mutex_);
        if (!wrong_.empty()) return;
        wrong_ = "step " + std::to_string(number) + " (all_gather_v, shift " + std::to_string(s.shift) + ", shared " +
                 std::to_string(s.shared) + ") rank " + std::to_string(rank) + ": byte " + std::to_string(i) + " of " +
                 std::to_string(bytes) + " of the piece of rank " + std::to_string(r);
        return;
      }
    }
  }

  void one(const Step& s, std::size_t number, int rank, HostCta& whole, BlockBarrier& barrier, std::barrier<>& grid,
           bool check) {
    if (!s.pieces.empty()) return one_of_pieces(s, number, rank, whole, barrier, grid, check);
    const P2pCall call = call_of(s, rank);
    const bool leads = whole.block() == 0 && whole.thread() == 0;
    const auto elements = s.count;
    const std::int64_t out_elements = elements * output_parts(s);
    if (leads) {
      if (!s.in_place) std::memset(call.output, 0xFF, static_cast<std::size_t>(call.bytes * output_parts(s)));
      for (std::int64_t i = 0; i < elements * input_parts(s); ++i) {
        values::write_random(s.dtype, call.input, i, data_seed(number, rank));
      }
    }
    let_others_go_first();
    grid.arrive_and_wait();
    int blocks = s.blocks;
    if (s.protocol == Protocol::small) {
      const std::int64_t packets = std::max<std::int64_t>(1, (call.bytes + kPacketBytes - 1) / kPacketBytes);
      blocks = static_cast<int>((packets + call.block_packets - 1) / call.block_packets);
    }
    HostCta cta(whole.thread(), whole.threads(), whole.block(), blocks, barrier);
    if (cta.block() < blocks) {
      if (s.protocol == Protocol::small) {
        dispatch(s, [&](auto element) {
          using Element = decltype(element);
          if constexpr (Element::kBytes > 1) {
            if (is_plain(call, cta.threads())) return run_small<Element, 0, true>(call, cta);
          }
          run_small<Element, 0, false>(call, cta);
        });
      } else {
        Peers& peers = peers_[rank][cta.block()];
        dispatch(s, [&](auto element) {
          if (size() == 2) {
            run_bulk<decltype(element), 2>(call, cta, peers);
          } else {
            run_bulk<decltype(element), 0>(call, cta, peers);
          }
        });
      }
    }
    let_others_go_first();
    grid.arrive_and_wait();
    if (leads && check) verify(s, number, rank, call, out_elements);
  }

  void one_of_pieces(const Step& s, std::size_t number, int rank, HostCta& whole, BlockBarrier& barrier,
                     std::barrier<>& grid, bool check) {
    const P2pCall call = call_of_pieces(s, rank);
    const bool leads = whole.block() == 0 && whole.thread() == 0;
    if (leads) prepare_pieces(s, number, rank);
    let_others_go_first();
    grid.arrive_and_wait();
    HostCta cta(whole.thread(), whole.threads(), whole.block(), s.blocks, barrier);
    if (cta.block() < s.blocks) {
      Peers& peers = peers_[rank][cta.block()];
      size() == 2 ? run_bulk<Raw, 2>(call, cta, peers) : run_bulk<Raw, 0>(call, cta, peers);
    }
    let_others_go_first();
    grid.arrive_and_wait();
    if (leads && check) verify_pieces(s, number, rank);
  }

  template <class F>
  void dispatch(const Step& s, const F& f) const {
    if (!reduces(s)) {
      f(Raw());
    } else if (s.dtype == DType::int32) {
      f(Int32());
    } else {
      f(Fp32());
    }
  }

  void verify(const Step& s, std::size_t number, int rank, const P2pCall& call, std::int64_t out_elements) {
    std::vector<char> one(4);
    for (std::int64_t i = 0; i < out_elements; ++i) {
      std::vector<double> elements;
      for (int r = 0; r < size(); ++r) {
        std::int64_t at = i;
        if (s.kind == CollectiveKind::all_gather) {
          r = static_cast<int>(i / s.count);
          at = i % s.count;
        } else if (s.kind == CollectiveKind::broadcast) {
          r = s.root;
        } else if (s.kind == CollectiveKind::reduce_scatter) {
          at = rank * s.count + i;
        }
        values::write_random(s.dtype, one.data() - at * static_cast<std::int64_t>(size_of(s.dtype)), at,
                             data_seed(number, r));
        elements.push_back(values::read(s.dtype, one.data(), 0));
        if (!reduces(s)) break;
      }
      const values::Expected want =
          reduces(s) ? values::expected(s.dtype, s.op, elements) : values::Expected{elements.front(), 0};
      const double got = values::read(s.dtype, call.output, i);
      if (std::fabs(got - want.value) <= want.tolerance) continue;
      const std::lock_guard lock(mutex_);
      if (!wrong_.empty()) return;
      wrong_ = "step " + std::to_string(number) + " (" + std::string(name(s.kind)) + " " + std::string(name(s.op)) +
               ", " + (s.protocol == Protocol::small ? "small" : "bulk") + ", count " + std::to_string(s.count) +
               ", shift " + std::to_string(s.shift) + (s.in_place ? ", in place" : "") + ", shared " +
               std::to_string(s.shared) + ") rank " + std::to_string(rank) + ": element " + std::to_string(i) + " is " +
               std::to_string(got) + ", not " + std::to_string(want.value);
      return;
    }
  }

  ArenaLayout layout_;
  std::uint64_t seed_;
  std::size_t runs_ = 0;
  std::vector<std::unique_ptr<RankMemory>> ranks_;
  Peers peers_[kMaxRanks][kBlocks] = {};
  std::mutex mutex_;
  std::string wrong_;
};

constexpr CollectiveKind kKinds[] = {CollectiveKind::all_reduce, CollectiveKind::broadcast, CollectiveKind::all_gather,
                                     CollectiveKind::reduce_scatter, CollectiveKind::barrier};

/// A random sequence of calls, of every kind and size, of both protocols.
std::vector<Step> random_steps(std::uint64_t seed, int ranks, int count) {
  std::vector<Step> steps;
  for (int i = 0; i < count; ++i) {
    std::uint64_t h = values::hash(seed, static_cast<std::uint64_t>(i));
    const auto pick = [&h](std::uint64_t n) {
      const std::uint64_t r = h % n;
      h = values::hash(h, 7);
      return r;
    };
    Step s;
    s.protocol = pick(2) == 0 ? Protocol::small : Protocol::bulk;
    s.kind = kKinds[pick(s.protocol == Protocol::small ? 5 : 4)];
    s.op = static_cast<ReduceOp>(pick(4));
    s.dtype = pick(2) == 0 ? DType::fp32 : DType::int32;
    s.root = static_cast<int>(pick(static_cast<std::uint64_t>(ranks)));
    constexpr std::int64_t kCounts[] = {0, 1, 2, 3, 5, 16, 63, 64, 130, 517};
    s.count = s.kind == CollectiveKind::barrier ? 0 : kCounts[pick(10)];
    if (s.protocol == Protocol::bulk && s.count == 0) s.count = 7;
    s.in_place = pick(2) == 0;
    s.shared = pick(3) == 0 ? ~1U : pick(3) == 0 ? 0U : ~0U;
    constexpr int kShifts[] = {0, 0, 4, 1};
    s.shift = kShifts[pick(4)];
    s.may_pull = pick(2) == 0;
    s.blocks = 1 + static_cast<int>(pick(2));
    if (pick(5) == 0) {
      constexpr std::int64_t kBytes[] = {0, 4, 8, 60, 64, 260, 1036, 5204};
      for (int r = 0; r < ranks; ++r) s.pieces.push_back(kBytes[pick(8)]);
      if (std::count(s.pieces.begin(), s.pieces.end(), 0) == ranks) s.pieces.back() = 4;  // else it is a barrier
    }
    steps.push_back(s);
  }
  return steps;
}

class P2pProtocol : public testing::TestWithParam<int> {};

#ifdef WARPMETER_TSAN
constexpr int kSteps = 60;
#else
constexpr int kSteps = 150;
#endif

TEST_P(P2pProtocol, RandomCallsInRandomSchedules) {
  for (const std::uint64_t seed : {1, 2, 3}) {
    World world(GetParam(), seed);
    const std::vector<Step> steps = random_steps(seed, GetParam(), kSteps);
    EXPECT_EQ(world.run([&](int) { return steps; }), "") << "seed " << seed;
  }
}

TEST_P(P2pProtocol, CountersWrapAndStalePacketsAreCleared) {
  World world(GetParam(), 11);
  world.clear_mask = 7;
  world.age((1U << 20) - 20, 65536 - 10, 0xFFFFFFF0U);
  const std::vector<Step> steps = random_steps(12, GetParam(), kSteps);
  EXPECT_EQ(world.run([&](int) { return steps; }), "");
}

// Pieces of unlike lengths that lie elsewhere on every rank, directly and through the stages.
TEST_P(P2pProtocol, PiecesOfAnyLengthAnywhere) {
  World world(GetParam(), 17);
  std::vector<Step> steps;
  const std::vector<std::vector<std::int64_t>> lengths = {{4, 4, 4},     {0, 1000, 300}, {5204, 0, 0},   {64, 4100, 68},
                                                          {1024, 12, 0}, {0, 0, 4},      {260, 260, 260}};
  for (const auto& three : lengths) {
    if (GetParam() == 2 && three[0] + three[1] == 0) continue;
    for (const unsigned shared : {~0U, 0U, ~1U, 1U}) {
      for (const int shift : {0, 1, 4}) {
        Step s;
        s.pieces.assign(three.begin(), three.begin() + GetParam());
        s.shared = shared;
        s.shift = shift;
        s.blocks = 1 + shift % 2;
        steps.push_back(s);
      }
    }
  }
  EXPECT_EQ(world.run([&](int) { return steps; }), "");
}

INSTANTIATE_TEST_SUITE_P(Worlds, P2pProtocol, testing::Values(2, 3));

// Whole packets on eight bytes have a kernel of their own: a rank whose arrays lie otherwise is in the other one.
TEST(P2pProtocolPlain, RanksNeedNotLieAlike) {
  World world(2, 9);
  const auto steps_of = [](int rank) {
    std::vector<Step> steps;
    for (int i = 0; i < 48; ++i) {
      Step s;
      s.op = static_cast<ReduceOp>(i % 4);
      s.dtype = i % 3 == 0 ? DType::int32 : DType::fp32;
      s.count = i % 5 == 0 ? 2 : 16;
      s.in_place = i % 7 == 0;
      s.shift = (i >> rank & 1) != 0 ? 4 : 0;
      steps.push_back(s);
    }
    return steps;
  };
  EXPECT_EQ(world.run(steps_of), "");
}

// Two ranks' sums of arrays on 16 bytes have a loop of their own, with a rest of less than a vector.
TEST(P2pProtocolPair, LengthsAndRests) {
  World world(2, 10);
  std::vector<Step> steps;
  for (const std::int64_t count : {1, 4, 5, 63, 130, 517, 1399}) {
    for (int i = 0; i < 8; ++i) {
      Step s;
      s.protocol = Protocol::bulk;
      s.op = i % 2 == 0 ? ReduceOp::sum : ReduceOp::avg;
      s.dtype = i % 3 == 0 ? DType::int32 : DType::fp32;
      s.count = count;
      s.in_place = i < 4;
      s.blocks = 1 + i % 2;
      steps.push_back(s);
    }
  }
  EXPECT_EQ(world.run([&](int) { return steps; }), "");
}

// A large call's packets stay where small calls do not write. Once the flag's 20 bits have come round, they must not
// pass for new ones.
TEST(P2pProtocolStale, PacketsOfALongGoneCallAreNotTaken) {
  World world(2, 5);
  world.clear_mask = 7;
  Step large;
  large.dtype = DType::int32;
  large.count = 500;
  large.blocks = 1;
  Step small = large;
  small.count = 2;
  std::vector<Step> steps = {large};
  for (int i = 0; i < 20; ++i) steps.push_back(small);
  ASSERT_EQ(world.run([&](int) { return steps; }), "");
  world.age(0, 0, 0);  // as though so many calls had gone by that the first one's number is the next
  world.late_rank = 1;
  EXPECT_EQ(world.run([&](int) { return std::vector<Step>{large}; }), "");
}

// A root has nothing to wait for but the others' word that they have read.
TEST(P2pProtocolOrder, ABroadcastsRootDoesNotRunAway) {
  World world(2, 6);
  world.timeout_ns = 5'000'000'000;
  world.late_rank = 1;
  Step step;
  step.kind = CollectiveKind::broadcast;
  step.count = 100;
  EXPECT_EQ(world.run([&](int) { return std::vector<Step>(10, step); }), "");
}

P2pFault fault_of(std::uint32_t code) {
  return static_cast<P2pFault>(code & 0xFFU);
}

TEST(P2pProtocolFailure, ARankThatDoesNotComeIsNamedAfterTheTimeout) {
  for (const Protocol protocol : {Protocol::small, Protocol::bulk}) {
    for (const unsigned shared : {~0U, 0U}) {
      World world(3, 21);
      world.timeout_ns = 200'000'000;
      world.time_passes_from_step = 1;
      Step step;
      step.protocol = protocol;
      step.count = 100;
      step.shared = shared;
      const std::vector<Step> whole = {step, step};
      const std::vector<Step> half = {step};
      (void)world.run([&](int rank) { return rank == 2 ? half : whole; }, false);
      for (const int rank : {0, 1}) {
        EXPECT_EQ(world.status(rank).code, fault_code(P2pFault::timeout, 2)) << "rank " << rank;
      }
      EXPECT_EQ(world.status(2).code, 0U);
    }
  }
}

TEST(P2pProtocolFailure, TheHostEndsTheWaiting) {
  for (const Protocol protocol : {Protocol::small, Protocol::bulk}) {
    World world(2, 31);
    Step step;
    step.protocol = protocol;
    step.count = 100;
    std::thread host([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      store_relaxed(&world.status(0).abort, 1);
    });
    (void)world.run(
        [&](int rank) {
          return rank == 1 ? std::vector<Step>() : std::vector<Step>{step, step, step};
        },
        false);
    host.join();
    EXPECT_EQ(world.status(0).code, fault_code(P2pFault::aborted, 1));
  }
}

TEST(P2pProtocolFailure, OtherCallsAreAMismatch) {
  for (const Protocol protocol : {Protocol::small, Protocol::bulk}) {
    World world(2, 41);
    Step step;
    step.protocol = protocol;
    step.count = 100;
    Step other = step;
    other.op = ReduceOp::max;
    (void)world.run([&](int rank) { return std::vector<Step>{step, rank == 0 ? step : other}; }, false);
    EXPECT_EQ(fault_of(world.status(0).code), P2pFault::mismatch);
    EXPECT_EQ(fault_of(world.status(1).code), P2pFault::mismatch);
  }
}

TEST(P2pProtocolFailure, PiecesOfOtherLengthsAreAMismatch) {
  World world(2, 43);
  const auto steps_of = [](int rank) {
    Step step;
    step.pieces = {400, rank == 0 ? 80 : 84};
    return std::vector<Step>{step};
  };
  (void)world.run(steps_of, false);
  EXPECT_EQ(fault_of(world.status(0).code), P2pFault::mismatch);
  EXPECT_EQ(fault_of(world.status(1).code), P2pFault::mismatch);
}

}  // namespace
}  // namespace warpmeter::collectives::p2p
