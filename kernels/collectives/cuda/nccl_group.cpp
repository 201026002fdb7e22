#include "kernels/collectives/cuda/nccl_group.hpp"

#include <future>
#include <utility>

#include "kernels/runtime/check.hpp"
#include "kernels/runtime/cuda_check.hpp"

namespace warpmeter::collectives::detail {
namespace {

constexpr auto kLook = std::chrono::milliseconds(50);
/// From a peer's end until what waits for it is given up: what it had sent may be on the way.
constexpr auto kGrace = std::chrono::milliseconds(500);

std::string seconds_text(double seconds) {
  std::string text = std::to_string(seconds);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text + " s";
}

}  // namespace

NcclGroup::NcclGroup(const NcclLibrary& nccl, const Start& start) : nccl_(nccl), start_(start) {
  // The library's call returns when all ranks have come: in a thread that can be left behind. Communicators whose calls
  // never block would start a thread for every collective.
  struct Made {
    ncclResult_t result = ncclInternalError;
    ncclComm_t comm = nullptr;
  };
  auto promise = std::make_shared<std::promise<Made>>();
  std::future<Made> made = promise->get_future();
  std::thread([promise, start, &nccl] {
    Made result;
    if (cudaSetDevice(start.device.index) == cudaSuccess) {
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 1;
      if (start.max_blocks > 0) config.maxCTAs = start.max_blocks;
      result.result = nccl.comm_init_rank_config(&result.comm, start.world_size, start.id, start.rank, &config);
    }
    promise->set_value(result);
  }).detach();
  if (made.wait_for(std::chrono::duration<double>(start.timeout_s)) != std::future_status::ready) {
    throw CollectiveTimeout(others(), "timeout: rank " + std::to_string(start.rank) + " has waited " +
                                          seconds_text(start.timeout_s) + " for NCCL to connect the ranks");
  }
  const Made result = made.get();
  if (result.result != ncclSuccess) {
    throw DeviceError(
        std::string("NCCL does not start: ") + nccl.get_error_string(result.result) + " (NCCL_DEBUG=WARN says more)",
        false);
  }
  comm_ = result.comm;
  peers_ = std::make_unique<PeerWatch>(start.identities, start.rank, [this](int /*rank*/) { wake_.notify_all(); });
  thread_ = std::thread([this] { serve(); });
}

NcclGroup::~NcclGroup() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  wake_.notify_all();
  thread_.join();
  if (comm_ != nullptr && !failed_) (void)nccl_.comm_abort(comm_);  // close() was not reached
}

std::vector<int> NcclGroup::others() const {
  std::vector<int> ranks;
  for (int r = 0; r < start_.world_size; ++r) {
    if (r != start_.rank) ranks.push_back(r);
  }
  return ranks;
}

void NcclGroup::throw_failure() const {
  if (!failed_) return;
  const std::lock_guard lock(mutex_);
  throw_collective_error(failure_->fault, failure_->ranks, failure_->text);
}

bool NcclGroup::failed() const {
  return failed_;
}

void NcclGroup::call(const std::string& what, const std::function<ncclResult_t(ncclComm_t)>& function) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) throw_collective_error(failure_->fault, failure_->ranks, failure_->text);
    call_since_ = Clock::now();
    call_what_ = what;
  }
  const ncclResult_t result = function(comm_);
  {
    const std::lock_guard lock(mutex_);
    call_since_.reset();
  }
  throw_failure();
  if (result != ncclSuccess) {
    throw DeviceError(what + ": NCCL: " + nccl_.get_error_string(result) + " (NCCL_DEBUG=WARN says more)", false);
  }
}

void NcclGroup::watch(std::shared_ptr<CUevent_st> begin, std::shared_ptr<CUevent_st> end, std::string what) {
  const std::lock_guard lock(mutex_);
  running_.push_back({std::move(begin), std::move(end), std::move(what), std::nullopt});
}

void NcclGroup::close() {
  {
    const std::lock_guard lock(mutex_);
    if (failure_ || comm_ == nullptr) return;
    call_since_ = Clock::now();
    call_what_ = "the group's end";
    at_the_end_ = true;
  }
  (void)nccl_.comm_destroy(comm_);
  const std::lock_guard lock(mutex_);
  call_since_.reset();
  comm_ = nullptr;
}

std::optional<NcclGroup::Failure> NcclGroup::look() {
  const auto now = Clock::now();
  const auto timeout = std::chrono::duration<double>(start_.timeout_s);
  const std::string me = "rank " + std::to_string(start_.rank);
  std::string busy;
  if (call_since_) {
    busy = call_what_;
    if (now - *call_since_ > timeout) {
      return Failure{CollectiveFault::timeout, others(),
                     "timeout: " + me + " has been " + seconds_text(start_.timeout_s) + " in the call of " + busy};
    }
  }
  try {
    while (!running_.empty() && is_done(running_.front().end.get())) running_.pop_front();
    if (!running_.empty()) {
      Running& first = running_.front();
      if (!first.seen_running && is_done(first.begin.get())) first.seen_running = now;
      if (first.seen_running) busy = first.what;
      if (first.seen_running && now - *first.seen_running > timeout) {
        return Failure{CollectiveFault::timeout, others(),
                       "timeout: " + me + " has waited " + seconds_text(start_.timeout_s) + " for " +
                           name_ranks(others()) + " in " + first.what};
      }
    }
  } catch (const DeviceError&) {
    running_.clear();  // the waiting thread gets it from its own event
  }
  if (comm_ != nullptr && !call_since_) {
    ncclResult_t state = ncclSuccess;
    if (nccl_.comm_get_async_error(comm_, &state) == ncclSuccess && state != ncclSuccess && state != ncclInProgress) {
      const std::vector<int> ended = peers_->ended();
      if (!ended.empty()) {
        return Failure{CollectiveFault::peer_died, ended,
                       name_ranks(ended) + " has ended; " + me + " heard it from NCCL"};
      }
      return Failure{CollectiveFault::peer_died, others(),
                     "NCCL on " + me + ": " + nccl_.get_error_string(state) + (busy.empty() ? "" : ", in " + busy)};
    }
  }
  const std::vector<int> ended = peers_->ended();
  if (!ended.empty() && !busy.empty() && !at_the_end_) {
    if (!ended_since_) ended_since_ = now;
    if (now - *ended_since_ > kGrace) {
      return Failure{CollectiveFault::peer_died, ended,
                     name_ranks(ended) + " has ended; " + me + " waits for it in " + busy};
    }
  } else {
    ended_since_.reset();
  }
  return std::nullopt;
}

void NcclGroup::serve() {
  (void)cudaSetDevice(start_.device.index);
  // Looking at events must not spoil a capture in another thread.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  (void)cudaThreadExchangeStreamCaptureMode(&mode);
  std::unique_lock lock(mutex_);
  while (!closing_ && !failure_) {
    failure_ = look();
    if (failure_) break;
    wake_.wait_for(lock, kLook);
  }
  if (!failure_) return;
  ncclComm_t comm = comm_;
  failed_ = true;
  lock.unlock();
  // Ends the kernels, and calls of the other thread that hang in the library.
  if (comm != nullptr) (void)nccl_.comm_abort(comm);
}

}  // namespace warpmeter::collectives::detail
