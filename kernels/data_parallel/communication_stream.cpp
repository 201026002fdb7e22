// Without CUDA there is none.
#include "kernels/data_parallel/communication_stream.hpp"

#if WARPMETER_CUDA
#include "kernels/runtime/cuda_check.hpp"
#else
#include "kernels/runtime/check.hpp"
#endif

namespace warpmeter::data_parallel {

#if WARPMETER_CUDA

CommunicationStream::CommunicationStream(Device device) : view_{device, nullptr} {
  const DeviceGuard guard(device);
  int least = 0, greatest = 0;
  WM_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t stream = nullptr;
  WM_CUDA_CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest));
  view_.handle = stream;
}

CommunicationStream::~CommunicationStream() {
  (void)cudaStreamDestroy(static_cast<cudaStream_t>(view_.handle));
}

#else

CommunicationStream::CommunicationStream(Device device) : view_{device, nullptr} {
  WM_CHECK(false, "this build has no CUDA");
}
CommunicationStream::~CommunicationStream() = default;

#endif

}  // namespace warpmeter::data_parallel
