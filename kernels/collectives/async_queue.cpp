#include "kernels/collectives/detail/async_queue.hpp"

#include <exception>
#include <utility>

namespace warpmeter::collectives::detail {

class AsyncQueue::Job : public WorkState {
 public:
  explicit Job(std::function<void()> body) : body_(std::move(body)) {}

  void run() {
    std::exception_ptr error;
    try {
      body_();
    } catch (...) {
      error = std::current_exception();
    }
    body_ = nullptr;
    {
      const std::lock_guard lock(mutex_);
      error_ = error;
      done_ = true;
    }
    finished_.notify_all();
  }

  [[nodiscard]] bool done() const override {
    const std::lock_guard lock(mutex_);
    return done_;
  }
  void wait() override {
    std::unique_lock lock(mutex_);
    finished_.wait(lock, [this] { return done_; });
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::function<void()> body_;
  mutable std::mutex mutex_;
  std::condition_variable finished_;
  bool done_ = false;
  std::exception_ptr error_;
};

AsyncQueue::~AsyncQueue() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Work AsyncQueue::submit(std::function<void()> job) {
  auto state = std::make_shared<Job>(std::move(job));
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(state);
    if (!thread_.joinable()) thread_ = std::thread([this] { serve(); });
  }
  wake_.notify_all();
  return Work(std::move(state));
}

void AsyncQueue::drain() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return jobs_.empty(); });
}

void AsyncQueue::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return closing_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    const std::shared_ptr<Job> job = jobs_.front();
    lock.unlock();
    job->run();
    lock.lock();
    jobs_.pop_front();
    if (jobs_.empty()) idle_.notify_all();
  }
}

}  // namespace warpmeter::collectives::detail
