#pragma once

#include <chrono>
#include <mutex>
#include <string>

namespace warpmeter::harness::launch {

/// What a rank is in the middle of and since when. Its measuring thread tells, its watching thread asks.
class CallWatch {
 public:
  using Clock = std::chrono::steady_clock;

  /// From here until it ends the rank is at `what`, or at its `count`th call of it.
  class Scope {
   public:
    Scope(CallWatch& watch, std::string what) : watch_(watch), before_(watch.enter(std::move(what))) {}
    ~Scope() { watch_.enter(std::move(before_)); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    CallWatch& watch_;
    std::string before_;
  };

  /// Another call of the same begins: time starts anew. Cheap enough for every sample.
  void again() noexcept {
    const std::lock_guard lock(mutex_);
    since_ = Clock::now();
    ++calls_;
  }

  struct Place {
    std::string what;  ///< empty: between two things, at nothing that waits for others
    double seconds = 0;
    long long calls = 0;
  };
  [[nodiscard]] Place place() const {
    const std::lock_guard lock(mutex_);
    return {what_, what_.empty() ? 0 : std::chrono::duration<double>(Clock::now() - since_).count(), calls_};
  }

 private:
  std::string enter(std::string what) {
    const std::lock_guard lock(mutex_);
    what_.swap(what);
    since_ = Clock::now();
    calls_ = 0;
    return what;
  }

  mutable std::mutex mutex_;
  std::string what_;
  Clock::time_point since_{};
  long long calls_ = 0;
};

}  // namespace warpmeter::harness::launch
