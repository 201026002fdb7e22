#include "kernels/collectives/cuda/stream_order.hpp"

#include "kernels/runtime/cuda_check.hpp"

namespace warpmeter::collectives::detail {

EventPool::~EventPool() {
  for (const cudaEvent_t event : free_) (void)cudaEventDestroy(event);
}

std::shared_ptr<CUevent_st> EventPool::take() {
  cudaEvent_t event = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      event = free_.back();
      free_.pop_back();
    }
  }
  if (event == nullptr) {
    const DeviceGuard guard(device_);
    WM_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  }
  return {event, [pool = shared_from_this()](cudaEvent_t used) {
            const std::lock_guard lock(pool->mutex_);
            pool->free_.push_back(used);
          }};
}

bool is_capturing(StreamView stream) {
  if (stream.handle == nullptr) return false;  // the default stream cannot be, and asking for it ends others' captures
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  WM_CUDA_CHECK(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream.handle), &status));
  return status != cudaStreamCaptureStatusNone;
}

bool StreamOrder::begin(StreamView stream) {
  if (is_capturing(stream)) return true;
  if (last_ != nullptr && last_stream_ != stream) {
    WM_CUDA_CHECK(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream.handle), last_.get(), 0));
  }
  return false;
}

std::shared_ptr<CUevent_st> StreamOrder::mark(StreamView stream) {
  std::shared_ptr<CUevent_st> event = events_->take();
  WM_CUDA_CHECK(cudaEventRecord(event.get(), static_cast<cudaStream_t>(stream.handle)));
  return event;
}

std::shared_ptr<CUevent_st> StreamOrder::end(StreamView stream, bool capturing) {
  if (capturing) return nullptr;
  last_ = mark(stream);
  last_stream_ = stream;
  return last_;
}

bool is_done(cudaEvent_t event) {
  const cudaError_t state = cudaEventQuery(event);
  if (state == cudaErrorNotReady) {
    (void)cudaGetLastError();
    return false;
  }
  WM_CUDA_CHECK(state);
  return true;
}

}  // namespace warpmeter::collectives::detail
