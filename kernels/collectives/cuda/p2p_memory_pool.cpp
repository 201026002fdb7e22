#include "kernels/collectives/cuda/p2p_memory_pool.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

#include "kernels/collectives/control.hpp"
#include "kernels/runtime/allocator.hpp"
#include "kernels/runtime/cuda_check.hpp"

namespace warpmeter::collectives::p2p {
namespace {

/// An allocation of its own: CUDA maps whole allocations into other processes, and puts small ones together.
constexpr std::size_t kGranule = std::size_t{2} << 20;

template <class T>
void append(std::string& message, const T& value) {
  message.append(reinterpret_cast<const char*>(&value), sizeof(value));
}
template <class T>
T read_at(const std::string& message, std::size_t at) {
  T value;
  std::memcpy(&value, message.data() + at, sizeof(value));
  return value;
}

}  // namespace

SharedMemory::SharedMemory(Communicator& control, Device device) : control_(control), device_(device) {}

SharedMemory::~SharedMemory() {
  const DeviceGuard guard(device_);
  for (auto& [number, segment] : segments_) {
    for (int rank = 0; rank < control_.world_size(); ++rank) unmap(segment, rank);
    if (segment.base != nullptr) (void)cudaFree(segment.base);
  }
}

void SharedMemory::unmap(Segment& segment, int rank) {
  char*& mapped = segment.mapped[static_cast<std::size_t>(rank)];
  if (mapped != nullptr) (void)cudaIpcCloseMemHandle(mapped);
  mapped = nullptr;
}

char* SharedMemory::allocate(std::size_t bytes) {
  const DeviceGuard guard(device_);
  const std::lock_guard lock(mutex_);
  const int ranks = control_.world_size();
  const int me = control_.rank();
  Segment made;
  made.bytes = std::max(kGranule, (bytes + kGranule - 1) / kGranule * kGranule);
  void* memory = nullptr;
  cudaIpcMemHandle_t handle = {};
  cudaError_t error = cudaMalloc(&memory, made.bytes);
  if (error == cudaSuccess) error = cudaIpcGetMemHandle(&handle, memory);
  if (error != cudaSuccess) (void)cudaGetLastError();
  made.base = static_cast<char*>(memory);

  // What each has got, and what it wants to be rid of.
  std::string message;
  append(message, static_cast<std::int32_t>(error));
  append(message, handle);
  for (const auto& [number, segment] : segments_) {
    if (segment.freed) append(message, number);
  }
  const std::vector<std::string> all = all_gather_bytes(control_, message);
  constexpr std::size_t kFreedAt = sizeof(std::int32_t) + sizeof(handle);
  bool all_have = true;
  bool out_of_memory = false;
  std::string why;
  for (int r = 0; r < ranks; ++r) {
    const std::string& theirs = all[static_cast<std::size_t>(r)];
    const auto their_error = static_cast<cudaError_t>(read_at<std::int32_t>(theirs, 0));
    if (their_error != cudaSuccess) {
      all_have = false;
      out_of_memory = out_of_memory || their_error == cudaErrorMemoryAllocation;
      why = "rank " + std::to_string(r) + ": " + cudaGetErrorString(their_error);
    }
    for (std::size_t at = kFreedAt; r != me && at + 8 <= theirs.size(); at += 8) {
      const auto segment = segments_.find(read_at<std::uint64_t>(theirs, at));
      if (segment != segments_.end()) unmap(segment->second, r);
    }
  }

  // Map the others', and tell them where; or that it cannot be done.
  std::string places;
  cudaError_t map_error = cudaSuccess;
  for (int r = 0; r < ranks; ++r) {
    void* mapped = nullptr;
    if (all_have && r != me && map_error == cudaSuccess) {
      const auto theirs = read_at<cudaIpcMemHandle_t>(all[static_cast<std::size_t>(r)], sizeof(std::int32_t));
      map_error = cudaIpcOpenMemHandle(&mapped, theirs, cudaIpcMemLazyEnablePeerAccess);
      if (map_error != cudaSuccess) {
        (void)cudaGetLastError();
        mapped = nullptr;
        why = "rank " + std::to_string(me) + " cannot map the memory of rank " + std::to_string(r) + ": " +
              cudaGetErrorString(map_error);
      }
    }
    made.mapped[static_cast<std::size_t>(r)] = static_cast<char*>(mapped);
    append(places, reinterpret_cast<std::uint64_t>(mapped));
  }
  append(places, static_cast<std::int32_t>(map_error));
  const std::vector<std::string> mapped_at = all_gather_bytes(control_, places);
  // By now everybody has unmapped what was freed.
  for (auto segment = segments_.begin(); segment != segments_.end();) {
    if (segment->second.freed && segment->second.base != nullptr) {
      (void)cudaFree(segment->second.base);
      segment->second.base = nullptr;
    }
    const auto& mapped = segment->second.mapped;
    const bool used = std::any_of(mapped.begin(), mapped.end(), [](const char* p) { return p != nullptr; });
    segment = segment->second.base == nullptr && !used ? segments_.erase(segment) : std::next(segment);
  }
  bool all_mapped = true;
  for (int r = 0; r < ranks; ++r) {
    const std::string& theirs = mapped_at[static_cast<std::size_t>(r)];
    made.seen_at[static_cast<std::size_t>(r)] = read_at<std::uint64_t>(theirs, static_cast<std::size_t>(me) * 8);
    all_mapped = all_mapped && read_at<std::int32_t>(theirs, static_cast<std::size_t>(ranks) * 8) == cudaSuccess;
  }
  if (all_have && all_mapped) return segments_.emplace(calls_++, made).first->second.base;

  for (int r = 0; r < ranks; ++r) unmap(made, r);
  control_.barrier();  // unmapped everywhere
  if (made.base != nullptr) (void)cudaFree(made.base);
  if (out_of_memory) throw OutOfMemory(bytes, free_memory_bytes(device_), properties(device_).memory_bytes);
  throw CollectiveError(CollectiveFault::unsupported, {me},
                        "p2p: " + (why.empty() ? std::string("another rank cannot map this one's memory") : why));
}

void SharedMemory::free(char* base) noexcept {
  const std::lock_guard lock(mutex_);
  for (auto& [number, segment] : segments_) {
    if (segment.base == base) segment.freed = true;
  }
}

void SharedMemory::close() {
  const DeviceGuard guard(device_);
  for (auto& [number, segment] : segments_) {
    for (int r = 0; r < control_.world_size(); ++r) unmap(segment, r);
  }
  control_.barrier();
  for (auto& [number, segment] : segments_) {
    if (segment.base != nullptr) (void)cudaFree(segment.base);
  }
  segments_.clear();
}

std::uint64_t SharedMemory::seen_by(int rank, const void* data, std::size_t bytes) const noexcept {
  const auto* address = static_cast<const char*>(data);
  const std::lock_guard lock(mutex_);
  for (const auto& [number, segment] : segments_) {
    if (segment.base == nullptr || address < segment.base || address + bytes > segment.base + segment.bytes) continue;
    const std::uint64_t there = segment.seen_at[static_cast<std::size_t>(rank)];
    return there == 0 ? 0 : there + static_cast<std::uint64_t>(address - segment.base);
  }
  return 0;
}

char* SharedMemory::of_rank(int rank, const char* base) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [number, segment] : segments_) {
    if (segment.base == base) return segment.mapped[static_cast<std::size_t>(rank)];
  }
  return nullptr;
}

}  // namespace warpmeter::collectives::p2p
