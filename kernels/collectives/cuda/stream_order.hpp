#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include <cuda_runtime_api.h>

#include "kernels/runtime/stream.hpp"

namespace warpmeter::collectives::detail {

/// Events that are used again. Shared: an event outlives the pool's owner in a Work.
class EventPool : public std::enable_shared_from_this<EventPool> {
 public:
  explicit EventPool(Device device) : device_(device) {}
  ~EventPool();
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  [[nodiscard]] std::shared_ptr<CUevent_st> take();

 private:
  Device device_;
  std::mutex mutex_;
  std::vector<cudaEvent_t> free_;
};

[[nodiscard]] bool is_capturing(StreamView stream);

/// Keeps a communicator's collectives in the order of their calls, on whatever streams they are.
class StreamOrder {
 public:
  explicit StreamOrder(Device device) : events_(std::make_shared<EventPool>(device)) {}

  /// Before a collective is enqueued on `stream`. True: the stream is being captured, so that nothing can be waited
  /// for.
  bool begin(StreamView stream);
  /// After it. The event that it is done by; null in a capture.
  [[nodiscard]] std::shared_ptr<CUevent_st> end(StreamView stream, bool capturing);
  [[nodiscard]] std::shared_ptr<CUevent_st> mark(StreamView stream);

 private:
  std::shared_ptr<EventPool> events_;
  std::shared_ptr<CUevent_st> last_;
  StreamView last_stream_;
};

/// cudaEventQuery: true once done. Throws DeviceError for the stream's failure.
[[nodiscard]] bool is_done(cudaEvent_t event);

}  // namespace warpmeter::collectives::detail
