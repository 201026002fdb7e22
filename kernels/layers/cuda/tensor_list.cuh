#pragma once

// Many tensors in one launch: the list travels in the kernel's parameters, blocks are dealt to fixed chunks of the
// tensors in their order. The same list gives the same chunks on every run.

#include <array>
#include <cstdint>
#include <span>

#include "kernels/layers/cuda/vectors.cuh"

namespace warpmeter::layers::cuda {

/// Elements of a tensor that one block handles.
constexpr std::int64_t kChunk = 16384;
/// Kernel parameters may have 32764 bytes (CUDA 12.1 and later); half of that is one launch for most models.
constexpr std::size_t kListBytes = 16384;

template <class Entry>
struct TensorList {
  static constexpr int kMost = static_cast<int>(kListBytes / (sizeof(Entry) + sizeof(std::int64_t))) - 1;
  int count = 0;
  std::int64_t first[kMost + 1] = {0};  ///< chunks before each tensor; first[count]: all
  Entry entries[kMost];

  [[nodiscard]] bool full() const { return count == kMost; }
  [[nodiscard]] std::int64_t chunks() const { return first[count]; }
  void add(const Entry& entry, std::int64_t elements) {
    entries[count] = entry;
    first[count + 1] = first[count] + divide_up(elements, kChunk);
    ++count;
  }
  /// The tensor of a chunk.
  [[nodiscard]] __device__ int find(std::int64_t chunk) const {
    int low = 0, high = count - 1;
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (first[middle] <= chunk) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }
};

/// Calls launch(list, chunks before it) for as few lists as hold `items`; make(item) gives an Entry, elements(item) its
/// number of elements. Empty tensors are left out.
template <class Entry, class Item, class Make, class Launch>
void for_lists(std::span<const Item> items, Make&& make, Launch&& launch) {
  TensorList<Entry> list;
  std::int64_t before = 0;
  const auto flush = [&] {
    if (list.count == 0) return;
    WM_CHECK(list.chunks() <= kMaxGrid, "too many elements for one grid");
    launch(list, before);
    before += list.chunks();
    list.count = 0;
  };
  for (const Item& item : items) {
    if (item.count == 0) continue;
    list.add(make(item), item.count);
    if (list.full()) flush();
  }
  flush();
}

}  // namespace warpmeter::layers::cuda
