#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "kernels/collectives/communicator.hpp"

namespace warpmeter::collectives::detail {

/// Runs jobs one after the other in a thread of its own, which starts with the first job. For backends whose
/// collectives occupy the calling thread.
class AsyncQueue {
 public:
  AsyncQueue() = default;
  ~AsyncQueue();  ///< finishes what was submitted
  AsyncQueue(const AsyncQueue&) = delete;
  AsyncQueue& operator=(const AsyncQueue&) = delete;

  /// An exception of the job is the Work's.
  Work submit(std::function<void()> job);
  /// Returns when everything submitted is done.
  void drain();

 private:
  class Job;
  void serve();

  std::mutex mutex_;
  std::condition_variable wake_, idle_;
  std::deque<std::shared_ptr<Job>> jobs_;  ///< the first one runs
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace warpmeter::collectives::detail
