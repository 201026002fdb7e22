// Without CUDA there is nothing to record, and nothing beside.
#include "kernels/transformer/graph.hpp"

#include <utility>

#include "kernels/runtime/check.hpp"
#include "kernels/transformer/detail/side_stream.hpp"

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

namespace detail {

StreamView create_side_stream(Device) {
  WM_CHECK(false, "this build has one stream for all work");
}
void destroy_side_stream(StreamView) noexcept {}

}  // namespace detail

#endif

Graph::Graph(Graph&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
Graph& Graph::operator=(Graph&& other) noexcept {
  std::swap(handle_, other.handle_);
  return *this;
}

}  // namespace warpmeter::transformer
