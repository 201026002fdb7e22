// Without CUDA there is nothing to record.
#include "kernels/transformer/graph.hpp"

#include <utility>

#include "kernels/runtime/check.hpp"

namespace warpmeter::transformer {

#if !WARPMETER_CUDA

bool Graph::supported(Device) {
  return false;
}

Graph::Graph(StreamView, const std::function<void()>&) {
  WM_CHECK(false, "this build records no graphs");
}
Graph::~Graph() = default;
void Graph::launch(StreamView) const {}

#endif

Graph::Graph(Graph&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
Graph& Graph::operator=(Graph&& other) noexcept {
  std::swap(handle_, other.handle_);
  return *this;
}

}  // namespace warpmeter::transformer
