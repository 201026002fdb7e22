#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "kernels/collectives/collective_error.hpp"
#include "kernels/collectives/communicator.hpp"
#include "kernels/collectives/cuda/p2p_protocol.hpp"
#include "kernels/collectives/cuda/peer_watch.hpp"
#include "kernels/collectives/cuda/stream_order.hpp"

namespace warpmeter::collectives::p2p {

/// What a communicator and the Works that outlive it share: the words of the kernels in host memory, and what became of
/// the group.
class Session {
 public:
  Session(int rank, Device device, double timeout_s);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  [[nodiscard]] P2pStatus* status() const noexcept { return status_; }
  /// Waiting kernels give up.
  void abort() noexcept { store_relaxed(&status_->abort, 1); }
  void watch(const std::vector<detail::Identity>& ranks);

  /// Throws what a kernel gave up for, the same ever after. `during`: what was waited for, for the first message.
  void throw_failure(const std::string& during);
  [[nodiscard]] bool failed() const;

 private:
  struct Failure {
    CollectiveFault fault;
    std::vector<int> ranks;
    std::string text;
  };
  [[nodiscard]] Failure failure_of(std::uint32_t code, const std::string& during) const;

  int rank_;
  double timeout_s_;
  P2pStatus* status_ = nullptr;
  mutable std::mutex mutex_;
  std::optional<Failure> failure_;
  std::unique_ptr<detail::PeerWatch> watch_;  ///< last: its thread uses status_
};

/// A collective on its stream.
class P2pWork final : public WorkState {
 public:
  P2pWork(std::shared_ptr<Session> session, std::shared_ptr<CUevent_st> event, std::string what)
      : session_(std::move(session)), event_(std::move(event)), what_(std::move(what)) {}
  [[nodiscard]] bool done() const override { return detail::is_done(event_.get()); }
  void wait() override;

 private:
  std::shared_ptr<Session> session_;
  std::shared_ptr<CUevent_st> event_;
  std::string what_;
};

}  // namespace warpmeter::collectives::p2p
