#pragma once

#include <functional>

#include "kernels/runtime/stream.hpp"

namespace warpmeter::transformer {

/// Work on one stream, recorded once and launched as a whole: no launch costs but one. CUDA only.
///
/// Memory that the work allocated and freed while it was recorded is what every launch writes to. Launch it only as
/// long as that memory has not been given back to the device (CachingAllocator::empty_cache) and nothing that must last
/// was allocated after the recording.
class Graph {
 public:
  /// True where streams can be recorded.
  [[nodiscard]] static bool supported(Device device);

  /// Records what `work` enqueues on `stream`, which must not be the default stream; nothing runs. Everything that
  /// `work` does must have been done before, so that libraries are loaded and memory is cached. Throws DeviceError, and
  /// what `work` throws.
  Graph(StreamView stream, const std::function<void()>& work);
  ~Graph();
  Graph(Graph&& other) noexcept;
  Graph& operator=(Graph&& other) noexcept;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void launch(StreamView stream) const;

 private:
  void* handle_ = nullptr;  ///< cudaGraphExec_t
};

}  // namespace warpmeter::transformer
