#include "kernels/collectives/backend.hpp"

#include <set>
#include <vector>

#include <gtest/gtest.h>
#include <sched.h>

#include "kernels/collectives/control.hpp"
#include "kernels/collectives/detail/shm_segment.hpp"
#include "kernels/runtime/check.hpp"
#include "kernels/runtime/device.hpp"
#include "tests/kernels/collectives/ranks.hpp"

namespace warpmeter::collectives {
namespace {

using ranks::require;

TEST(Backends, EachNameIsInTheTableOnce) {
  std::set<std::string> names;
  for (const Backend* backend : backends()) {
    EXPECT_TRUE(names.insert(std::string(backend->name())).second) << backend->name();
    EXPECT_EQ(find_backend(backend->name()), backend);
    EXPECT_FALSE(backend->description().empty());
  }
  EXPECT_EQ(names, std::set<std::string>(backend_names().begin(), backend_names().end()));
  EXPECT_EQ(find_backend("shmem"), nullptr);
}

TEST(Backends, OneThatIsNotThereSaysWhatToDo) {
  for (const Backend* backend : backends()) {
    const auto reason = backend->unavailable({});
    if (!reason) continue;
    EXPECT_EQ(reason->find(std::string(backend->name()) + ": "), 0U) << *reason;
  }
}

TEST(Backends, SharedMemoryIsOfOneHost) {
  const Backend& shm = *find_backend("shm");
  EXPECT_EQ(shm.unavailable({2, 1, 2}), std::nullopt);
  EXPECT_NE(shm.unavailable({2, 2, 1}), std::nullopt);
  EXPECT_NE(shm.unavailable({65, 1, 65}), std::nullopt);
}

TEST(Control, BytesOfAnyLengthArrive) {
  const LaunchReport report = launch_ranks(ranks::options(3), [](Communicator& control) {
    const auto text_of = [](int r) {
      return std::string(static_cast<std::size_t>(r) * 5000, static_cast<char>('a' + r));
    };
    const std::vector<std::string> all = all_gather_bytes(control, text_of(control.rank()));
    require(all.size() == 3, "three texts");
    for (int r = 0; r < 3; ++r) require(all[static_cast<std::size_t>(r)] == text_of(r), "text of " + std::to_string(r));
    for (int root = 0; root < 3; ++root) {
      require(broadcast_bytes(control, root, control.rank() == root ? text_of(root) : "other") == text_of(root),
              "from " + std::to_string(root));
    }
    for (const std::string& text : all_gather_bytes(control, "")) require(text.empty(), "nothing is nothing");
  });
  EXPECT_TRUE(report.ok()) << report.reason;
}

TEST(ShmBackend, RanksFindTheSegmentThroughTheControl) {
  const LaunchReport report = launch_ranks(ranks::options(3), [](Communicator& control) {
    RankContext context;
    context.rank = context.local_rank = control.rank();
    context.world_size = context.local_size = control.world_size();
    context.control = &control;
    for (int again = 0; again < 2; ++again) {
      const std::unique_ptr<Communicator> group = find_backend("shm")->create(context);
      require(group->backend() == "shm" && group->rank() == control.rank() && group->world_size() == 3, "a group");
      // Memory that the others reach at an address of their own.
      const CommunicatorBuffer memory = group->allocate(std::size_t{1} << 20);
      auto* values = static_cast<std::int32_t*>(memory.data());
      const std::int64_t count = std::int64_t{1} << 18;
      for (std::int64_t i = 0; i < count; ++i) values[i] = static_cast<std::int32_t>(i) + control.rank();
      const CollectiveBuffer buffer(values, count, DType::int32);
      group->all_reduce(buffer, buffer, ReduceOp::sum);
      for (std::int64_t i = 0; i < count; ++i) require(values[i] == 3 * i + 3, "the sum");
    }
  });
  EXPECT_TRUE(report.ok()) << report.reason;
}

// As mpirun starts them: on one core each they would hardly spin, and sleep at every meeting.
TEST(ShmBackend, RanksThatAreBoundToCoresOfTheirOwnHaveThemAll) {
  cpu_set_t usable;
  ASSERT_EQ(sched_getaffinity(0, sizeof(usable), &usable), 0);
  if (CPU_COUNT(&usable) < 2) GTEST_SKIP() << "one core";
  const int all = properties(Device::cpu()).cores;
  const LaunchReport report = launch_ranks(ranks::options(2), [&](Communicator& control) {
    require(detail::cores_of_all(control) == all, "cores of ranks that are not bound");
    cpu_set_t own;
    CPU_ZERO(&own);
    std::size_t core = 0;
    for (int skip = control.rank(); !CPU_ISSET(core, &usable) || skip-- > 0;) ++core;
    CPU_SET(core, &own);
    require(sched_setaffinity(0, sizeof(own), &own) == 0, "bound");
    require(detail::cores_of_all(control) == 2, "a core each");
  });
  EXPECT_TRUE(report.ok()) << report.reason;
}

TEST(ShmWorld, ThreadsAreTheCoresDividedByTheRanks) {
  ShmOptions options;
  options.world_size = 2;
  options.heap_bytes = 0;
  options.cores = 9;
  EXPECT_EQ(ShmWorld(options).threads(), 4);
  options.cores = 1;
  EXPECT_EQ(ShmWorld(options).threads(), 1);
  options.threads = 3;
  EXPECT_EQ(ShmWorld(options).threads(), 3);
}

TEST(ShmWorld, APathThatIsNoSegmentIsRefused) {
  EXPECT_THROW((void)ShmWorld::open("/proc/self/fd/999"), DeviceError);
  EXPECT_THROW((void)ShmWorld::open("/dev/null"), DeviceError);
}

}  // namespace
}  // namespace warpmeter::collectives
