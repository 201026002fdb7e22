#include "kernels/collectives/cuda/p2p_session.hpp"

#include <chrono>
#include <thread>

#include "kernels/runtime/check.hpp"
#include "kernels/runtime/cuda_check.hpp"

namespace warpmeter::collectives::p2p {
namespace {

using Clock = std::chrono::steady_clock;

std::string seconds_text(double seconds) {
  std::string text = std::to_string(seconds);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text + " s";
}

}  // namespace

Session::Session(int rank, Device device, double timeout_s) : rank_(rank), timeout_s_(timeout_s) {
  const DeviceGuard guard(device);
  void* memory = nullptr;
  WM_CUDA_CHECK(cudaHostAlloc(&memory, sizeof(P2pStatus), cudaHostAllocMapped | cudaHostAllocPortable));
  status_ = static_cast<P2pStatus*>(memory);
  *status_ = {};
}

Session::~Session() {
  watch_.reset();
  (void)cudaFreeHost(status_);
}

void Session::watch(const std::vector<detail::Identity>& ranks) {
  watch_ = std::make_unique<detail::PeerWatch>(ranks, rank_, [this](int /*rank*/) { abort(); });
}

bool Session::failed() const {
  const std::lock_guard lock(mutex_);
  return failure_.has_value() || load_relaxed(&status_->code) != 0;
}

Session::Failure Session::failure_of(std::uint32_t code, const std::string& during) const {
  const auto fault = static_cast<P2pFault>(code & 0xFFU);
  const int peer = static_cast<int>(code >> 8);
  const std::string me = "rank " + std::to_string(rank_);
  const std::string them = "rank " + std::to_string(peer);
  if (fault == P2pFault::timeout) {
    return {CollectiveFault::timeout,
            {peer},
            "timeout: " + me + " has waited " + seconds_text(timeout_s_) + " for " + them + " in " + during};
  }
  if (fault == P2pFault::mismatch) {
    return {CollectiveFault::mismatch,
            {std::min(rank_, peer), std::max(rank_, peer)},
            me + " and " + them + " do different things: " + me + " is in " + during};
  }
  std::vector<int> ended = watch_ != nullptr ? watch_->ended() : std::vector<int>();
  if (ended.empty()) ended = {peer};
  return {CollectiveFault::peer_died, ended, name_ranks(ended) + " has ended; " + me + " waits for it in " + during};
}

void Session::throw_failure(const std::string& during) {
  const std::lock_guard lock(mutex_);
  if (!failure_) {
    const std::uint32_t code = load_relaxed(&status_->code);
    if (code == 0) return;
    failure_ = failure_of(code, during);
  }
  throw_collective_error(failure_->fault, failure_->ranks, failure_->text);
}

void P2pWork::wait() {
  // The kernel ends by itself, however long it must wait: no time is counted here.
  const auto begin = Clock::now();
  try {
    while (!detail::is_done(event_.get())) {
      if (Clock::now() - begin > std::chrono::microseconds(200)) {
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      }
    }
  } catch (const DeviceError&) {
    session_->throw_failure(what_);  // a peer's end can take the memory away that a kernel reads
    throw;
  }
  session_->throw_failure(what_);
}

}  // namespace warpmeter::collectives::p2p
