#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace warpmeter::collectives::detail {

/// Threads that run one body together with the caller. Not the pool of parallel_for: OpenMP's does not live through
/// fork(), and a collective's threads wait for each other across processes, so that each must really run.
class ThreadTeam {
 public:
  explicit ThreadTeam(int threads);  ///< the caller's among them; the others start at the first run that needs them
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  /// Calls body(0 .. threads - 1), each in a thread of its own, body(0) in the caller's; waits for all and rethrows
  /// the first exception. threads is at most the team's. One caller at a time.
  void run(int threads, const std::function<void(int)>& body);

 private:
  void work(int thread);
  void keep_error() noexcept;

  std::mutex mutex_;
  std::condition_variable begin_, end_;
  const std::function<void(int)>* body_ = nullptr;
  std::uint64_t round_ = 0;
  int active_ = 0;   ///< threads of this round
  int running_ = 0;  ///< workers that have not finished it
  bool closing_ = false;
  std::exception_ptr error_;
  int size_;
  std::vector<std::thread> workers_;
};

}  // namespace warpmeter::collectives::detail
