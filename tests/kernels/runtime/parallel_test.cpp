#include "kernels/runtime/parallel.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/runtime/check.hpp"

namespace warpmeter {
namespace {

/// Sets the number of threads for one test.
class Threads {
 public:
  explicit Threads(int threads) : before_(num_threads()) { set_num_threads(threads); }
  ~Threads() { set_num_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

TEST(Parallel, SettingThreads) {
  {
    const Threads threads(5);
    EXPECT_EQ(num_threads(), 5);
  }
  EXPECT_GE(num_threads(), 1);
  EXPECT_THROW(set_num_threads(0), CheckError);
}

TEST(Parallel, EachWorkerRunsOnce) {
  for (const int count : {1, 2, 4, 7}) {
    const Threads threads(count);
    std::vector<int> ran(static_cast<std::size_t>(count));
    std::vector<std::thread::id> ids(static_cast<std::size_t>(count));
    parallel_workers([&](int worker, int workers) {
      EXPECT_EQ(workers, count);
      ++ran.at(static_cast<std::size_t>(worker));
      ids.at(static_cast<std::size_t>(worker)) = std::this_thread::get_id();
    });
    EXPECT_EQ(ran, std::vector<int>(static_cast<std::size_t>(count), 1));
    for (int i = 1; i < count; ++i) EXPECT_NE(ids[0], ids[static_cast<std::size_t>(i)]) << "a thread of its own each";
  }
}

TEST(Parallel, EachIndexRunsOnceInsideTheWorkersRange) {
  for (const int threads_wanted : {1, 3, 8}) {
    const Threads threads(threads_wanted);
    for (const std::int64_t count : {0, 1, 2, 7, 1000, 100000}) {
      std::vector<int> ran(static_cast<std::size_t>(count));
      parallel_for(count, [&](std::int64_t index, int worker) {
        EXPECT_GE(worker, 0);
        EXPECT_LT(worker, threads_wanted);
        ++ran[static_cast<std::size_t>(index)];
      });
      EXPECT_EQ(std::accumulate(ran.begin(), ran.end(), std::int64_t{0}), count);
      for (const int times : ran) ASSERT_EQ(times, 1);
    }
  }
}

TEST(Parallel, NegativeCountDoesNothing) {
  parallel_for(-3, [](std::int64_t, int) { FAIL(); });
}

TEST(Parallel, IndicesAreDealtInIncreasingOrder) {
  const Threads threads(4);
  // The lowest index not dealt out yet is what each worker gets: every worker's own sequence increases.
  std::vector<std::int64_t> last(4, -1);
  parallel_for(20000, [&](std::int64_t index, int worker) {
    std::int64_t& mine = last[static_cast<std::size_t>(worker)];
    EXPECT_GT(index, mine);
    mine = index;
  });
}

TEST(Parallel, NestedLoopsRunInTheCallingThread) {
  const Threads threads(4);
  std::atomic<int> total{0};
  parallel_for(8, [&](std::int64_t, int) {
    const auto here = std::this_thread::get_id();
    parallel_for(10, [&](std::int64_t, int worker) {
      EXPECT_EQ(std::this_thread::get_id(), here);
      EXPECT_EQ(worker, 0);
      ++total;
    });
    parallel_workers([&](int worker, int workers) {
      EXPECT_EQ(std::this_thread::get_id(), here);
      EXPECT_EQ(worker, 0);
      EXPECT_EQ(workers, 1);
      ++total;
    });
  });
  EXPECT_EQ(total, 8 * 11);
}

TEST(Parallel, AnExceptionReachesTheCaller) {
  const Threads threads(4);
  for (int round = 0; round < 20; ++round) {
    try {
      parallel_for(1000, [](std::int64_t index, int) {
        if (index == 17) throw std::runtime_error("index 17");
      });
      FAIL() << "no exception";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "index 17");
    }
    EXPECT_THROW(parallel_workers([](int worker, int) {
                   if (worker == 3) throw std::invalid_argument("worker 3");
                 }),
                 std::invalid_argument);
  }
  // The loops work as before afterwards, and a nested call is not mistaken for one inside the failed region.
  std::atomic<int> workers_seen{0};
  parallel_workers([&](int, int workers) { workers_seen = workers; });
  EXPECT_EQ(workers_seen, 4);
}

TEST(Parallel, NoIndexStartsAfterAnException) {
  const Threads threads(2);
  std::atomic<std::int64_t> started{0};
  EXPECT_THROW(parallel_for(std::int64_t{1} << 40,
                            [&](std::int64_t, int) {
                              ++started;
                              throw std::runtime_error("stop");
                            }),
               std::runtime_error);
  EXPECT_LE(started, 2);
}

TEST(Parallel, NestedExceptionPassesBothLevels) {
  const Threads threads(3);
  EXPECT_THROW(parallel_for(6,
                            [](std::int64_t, int) {
                              parallel_for(6, [](std::int64_t index, int) {
                                if (index == 5) throw std::out_of_range("inner");
                              });
                            }),
               std::out_of_range);
}

TEST(Parallel, LoopsFromSeveralThreadsAtOnce) {
  const Threads threads(2);
  std::vector<std::thread> callers;
  std::vector<std::int64_t> sums(4);
  for (std::size_t caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&sums, caller] {
      std::atomic<std::int64_t> sum{0};
      parallel_for(1000, [&](std::int64_t index, int) { sum += index; });
      sums[caller] = sum;
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sums, std::vector<std::int64_t>(4, 499500));
}

// Plain memory written by one side of a fork or join and read by the other: under ThreadSanitizer this test says that
// both edges are known to it.
TEST(Parallel, ForkAndJoinOrderPlainMemory) {
  const Threads threads(4);
  std::vector<std::int64_t> data(4096, 1);
  for (std::int64_t round = 2; round < 30; ++round) {
    parallel_for(64, [&](std::int64_t chunk, int) {
      for (std::int64_t i = chunk * 64; i < chunk * 64 + 64; ++i) data[static_cast<std::size_t>(i)] *= -1;
    });
    std::int64_t sum = 0;
    for (std::int64_t& value : data) {
      sum += value;
      value = round * (round % 2 == 0 ? 1 : -1);
    }
    EXPECT_EQ(std::abs(sum), 4096 * (round - 1));
  }
}

#ifdef WARPMETER_TSAN
// The counterpart: a race inside a loop's body is still found.
TEST(ParallelDeathTest, ThreadSanitizerFindsARaceInTheBody) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        set_num_threads(4);
        std::int64_t unprotected = 0;
        for (int round = 0; round < 100; ++round) {
          parallel_for(4096, [&](std::int64_t, int) { ++unprotected; });
        }
        std::exit(0);
      },
      ::testing::ExitedWithCode(66), "data race");
}
#endif

TEST(ParallelForStatic, EachWorkerHasOneContiguousEvenPart) {
  const int before = num_threads();
  for (const int threads : {1, 2, 3, 7}) {
    set_num_threads(threads);
    for (const std::int64_t count : {0, 1, 2, 6, 7, 100, 1001}) {
      std::vector<std::thread::id> owner(static_cast<std::size_t>(count));
      std::vector<int> calls(owner.size(), 0);
      parallel_for_static(count, [&](std::int64_t index) {
        owner[static_cast<std::size_t>(index)] = std::this_thread::get_id();
        ++calls[static_cast<std::size_t>(index)];
      });
      std::map<std::thread::id, std::int64_t> share;
      std::int64_t changes = 0;
      for (std::size_t i = 0; i < owner.size(); ++i) {
        EXPECT_EQ(calls[i], 1);
        ++share[owner[i]];
        changes += i > 0 && owner[i] != owner[i - 1];
      }
      EXPECT_EQ(changes, std::max<std::int64_t>(0, static_cast<std::int64_t>(share.size()) - 1))
          << threads << " " << count;
      for (const auto& [thread, rows] : share) {
        EXPECT_GE(rows, count / threads);
        EXPECT_LE(rows, (count + threads - 1) / threads);
      }
    }
  }
  set_num_threads(before);
}

}  // namespace
}  // namespace warpmeter
