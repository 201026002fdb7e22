#include <cuda_runtime_api.h>

#include "kernels/runtime/check.hpp"
#include "kernels/runtime/cuda_check.hpp"
#include "kernels/transformer/graph.hpp"

namespace warpmeter::transformer {

bool Graph::supported(Device device) {
  return device.is_cuda();
}

Graph::Graph(StreamView stream, const std::function<void()>& work) {
  WM_CHECK(stream.handle != nullptr, "the default stream cannot be recorded");
  const DeviceGuard guard(stream.device);
  auto* handle = static_cast<cudaStream_t>(stream.handle);
  // Relaxed: the allocator may look at the device, which does not touch the stream.
  WM_CUDA_CHECK(cudaStreamBeginCapture(handle, cudaStreamCaptureModeRelaxed));
  cudaGraph_t graph = nullptr;
  try {
    work();
  } catch (...) {
    cudaStreamEndCapture(handle, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();
    throw;
  }
  WM_CUDA_CHECK(cudaStreamEndCapture(handle, &graph));
  cudaGraphExec_t executable = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  WM_CUDA_CHECK(error);
  handle_ = executable;
}

Graph::~Graph() {
  if (handle_ != nullptr) cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(handle_));
}

void Graph::launch(StreamView stream) const {
  const DeviceGuard guard(stream.device);
  WM_CUDA_CHECK(cudaGraphLaunch(static_cast<cudaGraphExec_t>(handle_), static_cast<cudaStream_t>(stream.handle)));
}

}  // namespace warpmeter::transformer
