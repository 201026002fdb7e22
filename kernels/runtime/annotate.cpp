#include "kernels/runtime/annotate.hpp"

#include <mutex>
#include <set>
#include <string>

#ifdef WM_NVTX
#include <nvtx3/nvToolsExt.h>
#endif

namespace warpmeter {
namespace {

std::vector<Frame>& thread_frames() {
  static thread_local std::vector<Frame> frames;  // outermost first
  return frames;
}

std::string_view& thread_category() noexcept {
  static thread_local std::string_view category;
  return category;
}

RangeObserver*& thread_observer() noexcept {
  static thread_local RangeObserver* observer = nullptr;
  return observer;
}

void nvtx_push([[maybe_unused]] std::string_view name) {
#ifdef WM_NVTX
  // A view need not end in NUL, which NVTX wants.
  char text[256];
  const std::size_t length = name.copy(text, sizeof(text) - 1);
  text[length] = '\0';
  nvtxRangePushA(text);
#endif
}

void nvtx_pop() {
#ifdef WM_NVTX
  nvtxRangePop();
#endif
}

}  // namespace

std::string_view intern(std::string_view text) {
  // Never destroyed: records may be read while the program ends.
  static auto* const mutex = new std::mutex;
  static auto* const texts = new std::set<std::string, std::less<>>;
  const std::lock_guard lock(*mutex);
  auto found = texts->find(text);
  if (found == texts->end()) found = texts->emplace(text).first;
  return *found;
}

std::vector<Frame> current_frames() {
  const std::vector<Frame>& frames = thread_frames();
  return {frames.rbegin(), frames.rend()};
}

Range::Range(std::string_view name, std::source_location where) {
  thread_frames().push_back({name, where.file_name(), where.line()});
  nvtx_push(name);
  if (RangeObserver* observer = thread_observer()) observer->opened(name);
}

Range::~Range() {
  if (RangeObserver* observer = thread_observer()) observer->closed(thread_frames().back().name);
  nvtx_pop();
  thread_frames().pop_back();
}

void observe_ranges(RangeObserver* observer) noexcept {
  thread_observer() = observer;
}

FrameScope::FrameScope(std::string_view name, std::source_location where) {
  thread_frames().push_back({name, where.file_name(), where.line()});
}

FrameScope::~FrameScope() {
  thread_frames().pop_back();
}

CategoryScope::CategoryScope(std::string_view category) noexcept : outer_(thread_category()) {
  thread_category() = category;
}

CategoryScope::~CategoryScope() {
  thread_category() = outer_;
}

std::string_view current_category() noexcept {
  return thread_category();
}

bool nvtx_enabled() noexcept {
#ifdef WM_NVTX
  return true;
#else
  return false;
#endif
}

}  // namespace warpmeter
