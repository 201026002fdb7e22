#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "kernels/collectives/collective_error.hpp"
#include "kernels/collectives/cuda/nccl_library.hpp"
#include "kernels/collectives/cuda/peer_watch.hpp"
#include "kernels/collectives/cuda/stream_order.hpp"

namespace warpmeter::collectives::detail {

/// An NCCL communicator and the thread that looks after it: collectives that take too long, errors that NCCL reports,
/// peers that end. In any of these it aborts the communicator, which ends what runs on the GPU.
class NcclGroup {
 public:
  struct Start {
    int rank = 0, world_size = 1;
    ncclUniqueId id = {};
    Device device;
    double timeout_s = 30;
    int max_blocks = 0;
    std::vector<Identity> identities;
  };
  /// Meets the others. Throws CollectiveTimeout where they do not come, DeviceError.
  NcclGroup(const NcclLibrary& nccl, const Start& start);
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  [[nodiscard]] const NcclLibrary& nccl() const noexcept { return nccl_; }
  /// A call of the library on the communicator, under the watch. Throws the group's failure, DeviceError.
  void call(const std::string& what, const std::function<ncclResult_t(ncclComm_t)>& function);
  /// A collective between these two events is watched from now on.
  void watch(std::shared_ptr<CUevent_st> begin, std::shared_ptr<CUevent_st> end, std::string what);
  void throw_failure() const;
  [[nodiscard]] bool failed() const;
  /// Gives the communicator back in the library's orderly way.
  void close();

 private:
  using Clock = std::chrono::steady_clock;
  struct Running {
    std::shared_ptr<CUevent_st> begin, end;
    std::string what;
    std::optional<Clock::time_point> seen_running;
  };
  struct Failure {
    CollectiveFault fault;
    std::vector<int> ranks;
    std::string text;
  };

  void serve();
  /// With the lock. Finds out whether something is wrong now.
  [[nodiscard]] std::optional<Failure> look();
  [[nodiscard]] std::vector<int> others() const;

  const NcclLibrary& nccl_;
  Start start_;
  ncclComm_t comm_ = nullptr;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool closing_ = false;
  bool at_the_end_ = false;  ///< in close(): others may have ended before this rank, as it should be
  std::optional<Clock::time_point> call_since_;
  std::string call_what_;
  std::deque<Running> running_;
  std::optional<Failure> failure_;
  std::atomic<bool> failed_{false};
  std::optional<Clock::time_point> ended_since_;
  std::unique_ptr<PeerWatch> peers_;
  std::thread thread_;  ///< last: uses all of the above
};

}  // namespace warpmeter::collectives::detail
