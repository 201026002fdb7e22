#include "kernels/collectives/shm.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/collectives/launch.hpp"
#include "kernels/runtime/allocator.hpp"
#include "tests/kernels/collectives/ranks.hpp"
#include "tests/kernels/collectives/values.hpp"

namespace warpmeter::collectives {
namespace {

using ranks::require;

constexpr DType kTypes[] = {DType::fp32, DType::bf16, DType::fp16, DType::int32};
constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::avg, ReduceOp::max, ReduceOp::min};
constexpr int kMostRanks = 6;
#ifdef WARPMETER_TSAN
constexpr std::int64_t kLargest = (std::int64_t{1} << 17) + 3;  // ThreadSanitizer takes 15 times as long
#else
constexpr std::int64_t kLargest = (std::int64_t{1} << 20) + 3;
#endif
constexpr std::size_t kSlack = 64;

/// Rank r's input: the first elements of these. Made once, before the ranks start, which inherit it.
const char* data_of(DType dtype, int rank) {
  static std::map<std::pair<DType, int>, std::vector<char>> made;
  std::vector<char>& data = made[{dtype, rank}];
  if (data.empty()) {
    data.resize(static_cast<std::size_t>(kLargest) * size_of(dtype));
    for (std::int64_t i = 0; i < kLargest; ++i) {
      values::write_random(dtype, data.data(), i, static_cast<std::uint64_t>(rank));
    }
  }
  return data.data();
}

void make_data() {
  for (const DType dtype : kTypes) {
    for (int rank = 0; rank < kMostRanks; ++rank) (void)data_of(dtype, rank);
  }
}

std::uint64_t checksum(const char* data, std::size_t bytes) {
  std::uint64_t sum = 0xCBF29CE484222325ULL;
  for (; bytes >= 8; bytes -= 8, data += 8) {
    std::uint64_t word;
    std::memcpy(&word, data, 8);
    sum = (sum ^ word) * 0x100000001B3ULL;
  }
  for (; bytes > 0; --bytes, ++data) sum = (sum ^ static_cast<unsigned char>(*data)) * 0x100000001B3ULL;
  return sum;
}

using Checksums = std::array<std::uint64_t, kMostRanks>;

/// One rank of a test: a place of each kind of memory, and the calls with their checks.
class Rank {
 public:
  Rank(Communicator& communicator, Checksums& sums, std::size_t shift = 0)
      : communicator_(communicator), sums_(sums), shift_(shift) {
    const std::size_t bytes = static_cast<std::size_t>(kLargest) * 4 + kSlack * 8;
    for (CommunicatorBuffer& buffer : shared_) buffer = communicator.allocate(bytes);
    for (std::vector<char>& buffer : own_) buffer.resize(bytes);
  }

  void all_reduce(DType dtype, ReduceOp op, std::int64_t count) {
    const std::size_t bytes = static_cast<std::size_t>(count) * size_of(dtype);
    const std::string what = text("all_reduce", dtype, count) + " " + std::string(name(op));
    each_place(what, bytes, bytes, 0, 0, data_of(dtype, rank()), [&](char* in, char* out) {
      communicator_.all_reduce({in, count, dtype}, {out, count, dtype}, op);
    });
    same_on_all_ranks(bytes, what);
    // Equal everywhere: a rank checks its share.
    check_reduction(dtype, op, count * rank() / size(), count * (rank() + 1) / size(), 0, what);
  }

  void reduce_scatter(DType dtype, ReduceOp op, std::int64_t block) {
    const std::size_t bytes = static_cast<std::size_t>(block) * size_of(dtype);
    const std::int64_t count = block * size();
    const std::string what = text("reduce_scatter", dtype, count) + " " + std::string(name(op));
    each_place(what, bytes * static_cast<std::size_t>(size()), bytes, 0, bytes * static_cast<std::size_t>(rank()),
               data_of(dtype, rank()), [&](char* in, char* out) {
                 communicator_.reduce_scatter({in, count, dtype}, {out, block, dtype}, op);
               });
    check_reduction(dtype, op, block * rank(), block * (rank() + 1), block * rank(), what);
  }

  void all_gather(DType dtype, std::int64_t block) {
    const std::size_t bytes = static_cast<std::size_t>(block) * size_of(dtype);
    const std::int64_t count = block * size();
    const std::string what = text("all_gather", dtype, count);
    each_place(what, bytes, bytes * static_cast<std::size_t>(size()), bytes * static_cast<std::size_t>(rank()), 0,
               data_of(dtype, rank()), [&](char* in, char* out) {
                 communicator_.all_gather({in, block, dtype}, {out, count, dtype});
               });
    for (int r = 0; r < size(); ++r) {
      require(bytes == 0 ||
                  std::memcmp(result_.data() + static_cast<std::size_t>(r) * bytes, data_of(dtype, r), bytes) == 0,
              what + ": part of rank " + std::to_string(r));
    }
  }

  void broadcast(DType dtype, std::int64_t count, int root) {
    const std::size_t bytes = static_cast<std::size_t>(count) * size_of(dtype);
    const std::string what = text("broadcast", dtype, count) + " from " + std::to_string(root);
    each_place(what, bytes, bytes, 0, 0, data_of(dtype, rank()), [&](char* in, char* out) {
      communicator_.broadcast({in, count, dtype}, {out, count, dtype}, root);
    });
    require(bytes == 0 || std::memcmp(result_.data(), data_of(dtype, root), bytes) == 0, what);
  }

 private:
  [[nodiscard]] int rank() const { return communicator_.rank(); }
  [[nodiscard]] int size() const { return communicator_.world_size(); }
  static std::string text(const char* kind, DType dtype, std::int64_t count) {
    return std::string(kind) + " of " + std::to_string(count) + " " + std::string(name(dtype));
  }

  /// Runs the call out of place and in place, in the process's own memory and in the communicator's, and where rank 0
  /// differs from the others; keeps the first result and wants the others to have its bits. In place the input lies
  /// `input_at` bytes into the one array or the output `output_at`.
  void each_place(const std::string& what, std::size_t input_bytes, std::size_t output_bytes, std::size_t input_at,
                  std::size_t output_at, const char* input, const std::function<void(char*, char*)>& call) {
    bool first = true;
    for (const int memory : {0, 1, 2}) {
      const bool shared = memory == 1 || (memory == 2 && rank() == 0);
      for (const bool in_place : {false, true}) {
        char* one = (shared ? static_cast<char*>(shared_[0].data()) : own_[0].data()) + shift_;
        char* other = (shared ? static_cast<char*>(shared_[1].data()) : own_[1].data()) + shift_;
        char* in = one;
        char* out = other;
        if (in_place) {
          in = one + input_at;
          out = one + output_at;
        }
        const std::size_t whole = std::max(input_bytes + input_at, output_bytes + output_at);
        std::memset(one, 0xFF, whole + 1);
        std::memset(other, 0xFF, output_bytes + 1);
        if (input_bytes > 0) std::memcpy(in, input, input_bytes);
        call(in, out);
        const std::string where = what + (in_place ? ", in place" : ", out of place") + ", memory " +
                                  std::to_string(memory) + ", rank " + std::to_string(rank());
        require((in_place ? one[whole] : other[output_bytes]) == '\xFF', where + ": written past the end");
        if (!in_place && input_bytes > 0) require(std::memcmp(in, input, input_bytes) == 0, where + ": input changed");
        if (first) {
          result_.assign(out, out + output_bytes);
        } else {
          require(output_bytes == 0 || std::memcmp(out, result_.data(), output_bytes) == 0,
                  where + ": not the bits of the first");
        }
        first = false;
      }
    }
  }

  void same_on_all_ranks(std::size_t bytes, const std::string& what) {
    sums_[static_cast<std::size_t>(rank())] = checksum(result_.data(), bytes);
    communicator_.barrier();
    require(sums_[static_cast<std::size_t>(rank())] == sums_[0], what + ": not the bits of rank 0");
    communicator_.barrier();
  }

  void check_reduction(DType dtype, ReduceOp op, std::int64_t begin, std::int64_t end, std::int64_t result_begin,
                       const std::string& what) const {
    std::vector<const char*> inputs;
    for (int r = 0; r < size(); ++r) inputs.push_back(data_of(dtype, r));
    std::vector<double> elements(inputs.size());
    for (std::int64_t i = begin; i < end; ++i) {
      for (std::size_t r = 0; r < inputs.size(); ++r) elements[r] = values::read(dtype, inputs[r], i);
      const values::Expected want = values::expected(dtype, op, elements);
      const double got = values::read(dtype, result_.data(), i - result_begin);
      if (std::fabs(got - want.value) <= want.tolerance) continue;  // not so for a NaN
      require(false, what + ": element " + std::to_string(i) + " is " + std::to_string(got) + ", not " +
                         std::to_string(want.value));
    }
  }

  Communicator& communicator_;
  Checksums& sums_;
  std::size_t shift_;
  std::array<CommunicatorBuffer, 2> shared_;
  std::array<std::vector<char>, 2> own_;
  std::vector<char> result_;
};

class ShmWorldSize : public testing::TestWithParam<int> {};

void check_all(Rank& rank, int world_size, const std::vector<std::int64_t>& counts) {
  for (const std::int64_t count : counts) {
    // Of the scattered and gathered ones the whole array has at most the largest size.
    const std::int64_t block = std::min(count, kLargest / world_size);
    for (const DType dtype : kTypes) {
      for (const ReduceOp op : kOps) {
        rank.all_reduce(dtype, op, count);
        rank.reduce_scatter(dtype, op, block);
      }
      rank.all_gather(dtype, block);
      rank.broadcast(dtype, count, 0);
      rank.broadcast(dtype, count, world_size - 1);
    }
  }
}

TEST_P(ShmWorldSize, EveryCollectiveTypeAndOperation) {
  make_data();
  const ranks::Shared<Checksums> sums;
  const LaunchReport report = launch_ranks(ranks::options(GetParam()), [&](Communicator& communicator) {
    Rank rank(communicator, *sums);
    check_all(rank, communicator.world_size(), {0, 1, 3, 17, 1000, kLargest});
  });
  EXPECT_TRUE(report.ok()) << report.reason;
}

TEST_P(ShmWorldSize, SeveralThreadsSmallChunksOddAddresses) {
  make_data();
  const ranks::Shared<Checksums> sums;
  LaunchOptions options = ranks::options(GetParam(), 3);
  options.shm.chunk_bytes = 4096;  // many chunks, and a last one that is short
  const LaunchReport report = launch_ranks(options, [&](Communicator& communicator) {
    Rank rank(communicator, *sums, 1);
    check_all(rank, communicator.world_size(), {17, 100003});
  });
  EXPECT_TRUE(report.ok()) << report.reason;
}

INSTANTIATE_TEST_SUITE_P(Worlds, ShmWorldSize, testing::Values(1, 2, 3, 4, 6));

TEST(Shm, AsynchronousCallsReturnBeforeTheOthersCome) {
  const ranks::Shared<std::atomic<bool>> called;
  const LaunchReport report = launch_ranks(ranks::options(2), [&](Communicator& communicator) {
    std::vector<float> a(50000, 1.0F + static_cast<float>(communicator.rank())), b(3, 2.0F), c(a.size());
    const auto view = [](std::vector<float>& v) {
      return CollectiveBuffer(v.data(), static_cast<std::int64_t>(v.size()), DType::fp32);
    };
    if (communicator.rank() == 1) {
      while (!called->load()) std::this_thread::yield();
    }
    // Rank 1 calls only after rank 0 has returned from both.
    const Work first = communicator.all_reduce_async(view(a), view(a), ReduceOp::sum);
    const Work second = communicator.all_reduce_async(view(b), view(b), ReduceOp::max);
    if (communicator.rank() == 0) {
      require(!first.done() && !second.done(), "done without the other rank");
      called->store(true);
    }
    second.wait();
    require(first.done(), "they run in order");
    first.wait();
    require(std::all_of(a.begin(), a.end(), [](float v) { return v == 3.0F; }), "the sum");
    require(b[2] == 2.0F, "the maximum");

    // A synchronous call waits for those before it.
    const Work third = communicator.all_reduce_async(view(a), view(c), ReduceOp::sum);
    communicator.all_reduce(view(c), view(c), ReduceOp::sum);
    require(third.done() && c[49999] == 12.0F, "order with a synchronous call");
    communicator.barrier_async().wait();
  });
  EXPECT_TRUE(report.ok()) << report.reason;
}

TEST(Shm, ManyAsynchronousCallsInFlight) {
  constexpr int kCalls = 60;
  const LaunchReport report = launch_ranks(ranks::options(3), [&](Communicator& communicator) {
    std::vector<std::vector<std::int32_t>> buffers;
    std::vector<Work> works;
    for (int i = 0; i < kCalls; ++i)
      buffers.emplace_back(static_cast<std::size_t>(i * i * 11 + 1), communicator.rank());
    for (auto& buffer : buffers) {
      const CollectiveBuffer view(buffer.data(), static_cast<std::int64_t>(buffer.size()), DType::int32);
      works.push_back(communicator.all_reduce_async(view, view, ReduceOp::sum));
    }
    for (int i = kCalls - 1; i >= 0; --i) {
      const auto& buffer = buffers[static_cast<std::size_t>(i)];
      works[static_cast<std::size_t>(i)].wait();
      require(std::all_of(buffer.begin(), buffer.end(), [](std::int32_t v) { return v == 3; }),
              "call " + std::to_string(i));
    }
  });
  EXPECT_TRUE(report.ok()) << report.reason;
}

TEST(Shm, ABarrierHoldsUntilAllHaveCome) {
  const ranks::Shared<std::atomic<int>> come;
  const LaunchReport report = launch_ranks(ranks::options(4), [&](Communicator& communicator) {
    for (int round = 1; round <= 200; ++round) {
      come->fetch_add(1);
      communicator.barrier();
      require(come->load() >= 4 * round, "someone was not there in round " + std::to_string(round));
      communicator.barrier();
    }
  });
  EXPECT_TRUE(report.ok()) << report.reason;
}

TEST(Shm, TheHeapServesItsSizeAgainAndAgain) {
  LaunchOptions options = ranks::options(2);
  options.shm.heap_bytes = 1 << 20;
  const LaunchReport report = launch_ranks(options, [&](Communicator& communicator) {
    for (int round = 0; round < 3; ++round) {
      const CommunicatorBuffer first = communicator.allocate(600 << 10);
      bool refused = false;
      try {
        (void)communicator.allocate(600 << 10);
      } catch (const OutOfMemory& error) {
        refused = error.requested() == 600U << 10 && error.limit() == 1U << 20;
      }
      require(refused, "more than the heap has");
      const CommunicatorBuffer second = communicator.allocate(400 << 10);
      std::memset(first.data(), 1, first.bytes());
      std::memset(second.data(), 2, second.bytes());
      require(static_cast<const char*>(first.data())[first.bytes() - 1] == 1, "blocks overlap");
      require(reinterpret_cast<std::uintptr_t>(second.data()) % 64 == 0, "alignment");
    }
  });
  EXPECT_TRUE(report.ok()) << report.reason;
}

}  // namespace
}  // namespace warpmeter::collectives
