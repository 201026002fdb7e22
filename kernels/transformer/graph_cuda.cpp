#include <cstddef>
#include <vector>

#include <cuda_runtime_api.h>

#include "kernels/runtime/check.hpp"
#include "kernels/runtime/cuda_check.hpp"
#include "kernels/transformer/detail/side_stream.hpp"
#include "kernels/transformer/graph.hpp"

namespace warpmeter::transformer {

namespace {

/// What is recorded of a side lane yields to the rest (detail/side_stream.hpp).
void set_priorities(cudaGraph_t graph) {
  int least = 0, greatest = 0;
  WM_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  std::size_t count = 0;
  WM_CUDA_CHECK(cudaGraphGetNodes(graph, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count), main, side;
  WM_CUDA_CHECK(cudaGraphGetNodes(graph, nodes.data(), &count));
  for (cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
    WM_CUDA_CHECK(cudaGraphNodeGetType(node, &type));
    if (type != cudaGraphNodeTypeKernel) continue;
    cudaLaunchAttributeValue value{};
    WM_CUDA_CHECK(cudaGraphKernelNodeGetAttribute(node, cudaLaunchAttributePriority, &value));
    (value.priority == detail::kSidePriority ? side : main).push_back(node);
  }
  if (side.empty()) return;
  const auto set = [](const std::vector<cudaGraphNode_t>& to, int priority) {
    cudaLaunchAttributeValue value{};
    value.priority = priority;
    for (cudaGraphNode_t node : to) {
      WM_CUDA_CHECK(cudaGraphKernelNodeSetAttribute(node, cudaLaunchAttributePriority, &value));
    }
  };
  set(main, greatest);
  set(side, least);
}

}  // namespace

StreamView detail::create_side_stream(Device device) {
  const DeviceGuard guard(device);
  cudaStream_t stream = nullptr;
  WM_CUDA_CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, kSidePriority));
  return {device, stream};
}

void detail::destroy_side_stream(StreamView stream) noexcept {
  static_cast<void>(cudaStreamDestroy(static_cast<cudaStream_t>(stream.handle)));
}

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
  cudaError_t error = cudaErrorUnknown;
  try {
    set_priorities(graph);
    error = cudaGraphInstantiate(&executable, graph, 0);
  } catch (...) {
    cudaGraphDestroy(graph);
    throw;
  }
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
