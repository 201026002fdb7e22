#pragma once

#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>

#include <sys/mman.h>

#include "kernels/collectives/launch.hpp"

namespace warpmeter::collectives::ranks {

/// In a rank a GoogleTest assertion would be lost with the process: what is wrong becomes the rank's reason.
inline void require(bool condition, const std::string& what) {
  if (!condition) throw std::logic_error(what);
}

inline LaunchOptions options(int world_size, int threads = 1) {
  LaunchOptions launch;
  launch.shm.world_size = world_size;
  launch.shm.threads = threads;
  launch.shm.heap_bytes = std::size_t{64} << 20;
  launch.shm.timeout_s = 60;
  launch.timeout_s = 240;
  return launch;
}

/// A T that the test and its ranks share, beside the communicator.
template <class T>
class Shared {
 public:
  static_assert(std::is_trivially_destructible_v<T>);
  Shared() {
    void* memory = mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    value_ = new (memory) T();
  }
  ~Shared() { munmap(value_, sizeof(T)); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  T* operator->() const { return value_; }
  T& operator*() const { return *value_; }

 private:
  T* value_;
};

}  // namespace warpmeter::collectives::ranks
