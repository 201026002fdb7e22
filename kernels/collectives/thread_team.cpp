#include "kernels/collectives/detail/thread_team.hpp"

#include <string>
#include <utility>

#include "kernels/runtime/check.hpp"

namespace warpmeter::collectives::detail {

ThreadTeam::ThreadTeam(int threads) : size_(threads) {
  WM_CHECK(threads >= 1, "threads " + std::to_string(threads));
}

ThreadTeam::~ThreadTeam() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  begin_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadTeam::keep_error() noexcept {
  const std::lock_guard lock(mutex_);
  if (!error_) error_ = std::current_exception();
}

void ThreadTeam::run(int threads, const std::function<void(int)>& body) {
  WM_CHECK(threads >= 1 && threads <= size_, "threads " + std::to_string(threads) + " of " + std::to_string(size_));
  if (threads == 1) return body(0);
  while (static_cast<int>(workers_.size()) < size_ - 1) {
    workers_.emplace_back([this, thread = static_cast<int>(workers_.size()) + 1] { work(thread); });
  }
  {
    const std::lock_guard lock(mutex_);
    body_ = &body;
    active_ = threads;
    running_ = size_ - 1;
    error_ = nullptr;
    ++round_;
  }
  begin_.notify_all();
  try {
    body(0);
  } catch (...) {
    keep_error();
  }
  std::unique_lock lock(mutex_);
  end_.wait(lock, [this] { return running_ == 0; });
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void ThreadTeam::work(int thread) {
  std::uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    begin_.wait(lock, [&] { return closing_ || round_ != seen; });
    if (closing_) return;
    seen = round_;
    if (thread < active_) {
      const std::function<void(int)>& body = *body_;
      lock.unlock();
      try {
        body(thread);
      } catch (...) {
        keep_error();
      }
      lock.lock();
    }
    if (--running_ == 0) end_.notify_one();
  }
}

}  // namespace warpmeter::collectives::detail
