#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/kernels/collectives/gpu_ranks.hpp"
#if WARPMETER_NCCL
#include "kernels/collectives/cuda/nccl_group.hpp"
#endif

namespace warpmeter::collectives {
namespace {

using ranks::launch_on_gpus;
using ranks::require;

using Make = std::unique_ptr<Communicator> (*)(const RankContext&, double timeout_s);

std::unique_ptr<Communicator> make_p2p_group(const RankContext& context, double timeout_s) {
  P2pOptions options;
  options.timeout_s = timeout_s;
  return make_p2p(context, options);
}
#if WARPMETER_NCCL
std::unique_ptr<Communicator> make_nccl_group(const RankContext& context, double timeout_s) {
  NcclOptions options;
  options.timeout_s = timeout_s;
  return make_nccl(context, options);
}
#endif

/// Some device memory and a call on it.
struct Calls {
  Calls(Communicator& group, const RankContext& context) : communicator(group), device(context.device) {
    WM_CUDA_CHECK(cudaMalloc(&data, kBytes));
    WM_CUDA_CHECK(cudaMemset(data, 0, kBytes));
  }
  void sum(std::int64_t count, ReduceOp op = ReduceOp::sum) const {
    const CollectiveBuffer view(data, count, DType::fp32, device);
    communicator.all_reduce(view, view, op);
  }
  static constexpr std::size_t kBytes = std::size_t{16} << 20;
  Communicator& communicator;
  Device device;
  void* data = nullptr;  ///< the process's end gives it back
};

double seconds_of(const std::function<void()>& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

template <class Error>
void expect_error(const std::vector<int>& ranks, const std::string& word, const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    require(error.ranks() == ranks && std::string(error.what()).find(word) != std::string::npos, error.what());
    return;
  }
  require(false, "nothing was thrown");
}

class GpuFailure : public testing::TestWithParam<Make> {};

TEST_P(GpuFailure, ARankThatIsKilledIsNamed) {
  WM_NEED_GPUS(2);
  for (const std::int64_t count : {std::int64_t{1000}, std::int64_t{1} << 21}) {
    const LaunchReport report = launch_on_gpus(2, [&](const RankContext& context) {
      const auto communicator = GetParam()(context, 30);
      const Calls calls(*communicator, context);
      for (int i = 0; i < 5; ++i) calls.sum(count);
      if (context.rank == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(200));  // rank 0's kernel waits by now
        raise(SIGKILL);
      }
      const double seconds = seconds_of([&] { expect_error<PeerDied>({1}, "rank 1", [&] { calls.sum(count); }); });
      require(seconds < 10, "told after " + std::to_string(seconds) + " s");
      expect_error<PeerDied>({1}, "rank 1", [&] { calls.sum(count); });  // from now on
    });
    EXPECT_EQ(report.first_failed, 1) << report.reason;
    EXPECT_TRUE(report.ranks[0].reason.empty()) << report.ranks[0].reason;
  }
}

TEST_P(GpuFailure, ARankThatDoesNotComeIsATimeout) {
  WM_NEED_GPUS(2);
  for (const std::int64_t count : {std::int64_t{1000}, std::int64_t{1} << 21}) {
    const LaunchReport report = launch_on_gpus(2, [&](const RankContext& context) {
      const auto communicator = GetParam()(context, 1.5);
      const Calls calls(*communicator, context);
      calls.sum(count);
      if (context.rank == 1) {
        std::this_thread::sleep_for(std::chrono::seconds(5));
        _exit(0);
      }
      const double seconds =
          seconds_of([&] { expect_error<CollectiveTimeout>({1}, "1.5 s", [&] { calls.sum(count); }); });
      require(seconds > 1 && seconds < 4.5, "told after " + std::to_string(seconds) + " s");
      _exit(0);
    });
    EXPECT_TRUE(report.ranks[0].reason.empty()) << report.ranks[0].reason;
  }
}

std::string group_name(const testing::TestParamInfo<Make>& info) {
  return info.param == make_p2p_group ? "p2p" : "nccl";
}
#if WARPMETER_NCCL
INSTANTIATE_TEST_SUITE_P(Backends, GpuFailure, testing::Values(make_p2p_group, make_nccl_group), group_name);
#else
INSTANTIATE_TEST_SUITE_P(Backends, GpuFailure, testing::Values(make_p2p_group), group_name);
#endif

#if WARPMETER_NCCL
/// A library whose group takes its time to end.
std::atomic<bool> aborted{false};
detail::NcclLibrary slow_to_end() {
  detail::NcclLibrary library{};
  library.get_error_string = [](ncclResult_t) { return "an error"; };
  library.comm_init_rank_config = [](ncclComm_t* comm, int, ncclUniqueId, int, ncclConfig_t*) {
    *comm = reinterpret_cast<ncclComm_t>(&aborted);
    return ncclSuccess;
  };
  library.comm_get_async_error = [](ncclComm_t, ncclResult_t* state) {
    *state = ncclSuccess;
    return ncclSuccess;
  };
  library.comm_destroy = [](ncclComm_t) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    return ncclSuccess;
  };
  library.comm_abort = [](ncclComm_t) {
    aborted = true;
    return ncclSuccess;
  };
  return library;
}

// The others come to their ends earlier or later; nobody aborts what is being given back.
TEST(NcclFailure, AtTheGroupsEndOthersMayHaveEnded) {
  WM_NEED_GPUS(1);
  const LaunchReport report = launch_on_gpus(1, [](const RankContext& context) {
    const pid_t other = fork();
    if (other == 0) {
      for (;;) pause();
    }
    const detail::NcclLibrary library = slow_to_end();
    detail::NcclGroup::Start start;
    start.world_size = 2;
    start.device = context.device;
    const detail::Identity self = detail::own_identity();
    start.identities = {self, {self.host, other}};
    {
      detail::NcclGroup group(library, start);
      kill(other, SIGKILL);
      waitpid(other, nullptr, 0);
      group.close();
      require(!group.failed(), "the end is a failure");
    }
    require(!aborted, "aborted while it was given back");
  });
  EXPECT_TRUE(report.ok()) << report.reason;
}
#endif

TEST(P2pFailure, DifferentCallsAreAMismatch) {
  WM_NEED_GPUS(2);
  for (const std::int64_t count : {std::int64_t{1000}, std::int64_t{1} << 21}) {
    const LaunchReport report = launch_on_gpus(2, [&](const RankContext& context) {
      const auto communicator = make_p2p_group(context, 5);
      const Calls calls(*communicator, context);
      calls.sum(count);
      expect_error<CollectiveMismatch>({0, 1}, "different things",
                                       [&] { calls.sum(count, context.rank == 0 ? ReduceOp::sum : ReduceOp::max); });
    });
    EXPECT_TRUE(report.ok()) << report.reason;
  }
}

}  // namespace
}  // namespace warpmeter::collectives
