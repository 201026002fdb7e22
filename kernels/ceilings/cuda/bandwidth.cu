// Copy and read kernels that reach the memory's peak.
//
// Both: 16-byte accesses, a warp's 32 of them contiguous, kUnroll in flight a thread. A block works on tiles of
// kThreads * kUnroll vectors: tile t starts at vector t * kThreads * kUnroll, and thread i of it takes i, i + kThreads,
// ... The grid is one block a tile, or as many blocks as fit at once, which then stride over the tiles. Data are used
// once: loads and stores carry the evict-first hint (ld.cs, st.cs).
// Read: the words are added up, modulo 2^32; each block writes its sum, so that no load can be left out.
#include <algorithm>
#include <array>
#include <vector>

#include <cuda_runtime.h>

#include "kernels/ceilings/cuda/fill.hpp"
#include "kernels/ceilings/detail/backends.hpp"
#include "kernels/ceilings/detail/harness_buffer.hpp"
#include "kernels/runtime/cuda_check.hpp"

namespace warpmeter::ceilings::detail {
namespace {

constexpr unsigned kThreads = 512;
constexpr std::size_t kVectorBytes = sizeof(uint4);

template <int kUnroll>
__global__ __launch_bounds__(kThreads) void copy_kernel(uint4* __restrict__ destination,
                                                        const uint4* __restrict__ source, std::size_t vectors) {
  constexpr std::size_t kTile = static_cast<std::size_t>(kThreads) * kUnroll;
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * kTile;
  for (std::size_t tile = static_cast<std::size_t>(blockIdx.x) * kTile; tile < vectors; tile += step) {
    const std::size_t first = tile + threadIdx.x;
    uint4 values[kUnroll];
    if (tile + kTile <= vectors) {
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) values[i] = __ldcs(source + first + i * kThreads);
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) __stcs(destination + first + i * kThreads, values[i]);
    } else {
      for (std::size_t at = first; at < vectors; at += kThreads) destination[at] = source[at];
    }
  }
}

__device__ unsigned sum_of(uint4 value) {
  return (value.x + value.y) + (value.z + value.w);
}

template <int kUnroll>
__global__ __launch_bounds__(kThreads) void read_kernel(unsigned* __restrict__ block_sums,
                                                        const uint4* __restrict__ source, std::size_t vectors) {
  constexpr std::size_t kTile = static_cast<std::size_t>(kThreads) * kUnroll;
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * kTile;
  unsigned sum = 0;
  for (std::size_t tile = static_cast<std::size_t>(blockIdx.x) * kTile; tile < vectors; tile += step) {
    const std::size_t first = tile + threadIdx.x;
    if (tile + kTile <= vectors) {
      uint4 values[kUnroll];
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) values[i] = __ldcs(source + first + i * kThreads);
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) sum += sum_of(values[i]);
    } else {
      for (std::size_t at = first; at < vectors; at += kThreads) sum += sum_of(source[at]);
    }
  }
  __shared__ unsigned warp_sums[kThreads / 32];
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xFFFFFFFFu, sum, offset);
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    unsigned total = 0;
    for (unsigned warp = 0; warp < kThreads / 32; ++warp) total += warp_sums[warp];
    block_sums[blockIdx.x] = total;
  }
}

/// One way to launch either kernel. `waves` 0: one block a tile; else that many times the blocks that fit at once.
struct Shape {
  int unroll;
  int waves;
};
constexpr std::array<Shape, 5> kShapes = {Shape{2, 0}, Shape{4, 0}, Shape{8, 0}, Shape{4, 1}, Shape{8, 1}};

std::string shape_name(const Shape& shape) {
  return "16 B x " + std::to_string(shape.unroll) + " a thread, " +
         (shape.waves == 0 ? std::string("a block a tile") : std::string("resident blocks"));
}

template <class Kernel>
unsigned blocks_for(Kernel kernel, const Shape& shape, std::size_t vectors, int multiprocessors) {
  const std::size_t tile = static_cast<std::size_t>(kThreads) * static_cast<std::size_t>(shape.unroll);
  const std::size_t tiles = (vectors + tile - 1) / tile;
  if (shape.waves == 0) return static_cast<unsigned>(std::min<std::size_t>(tiles, 0x7FFFFFFF));
  int resident = 0;
  WM_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, kThreads, 0));
  return static_cast<unsigned>(std::min<std::size_t>(tiles, static_cast<std::size_t>(resident * multiprocessors)));
}

using CopyKernel = void (*)(uint4*, const uint4*, std::size_t);
using ReadKernel = void (*)(unsigned*, const uint4*, std::size_t);

CopyKernel copy_kernel_of(int unroll) {
  return unroll == 2 ? copy_kernel<2> : unroll == 4 ? copy_kernel<4> : copy_kernel<8>;
}
ReadKernel read_kernel_of(int unroll) {
  return unroll == 2 ? read_kernel<2> : unroll == 4 ? read_kernel<4> : read_kernel<8>;
}

/// Twenty times the L2 of the largest GPUs, within an eighth of what is free.
std::size_t default_bytes(Device device) {
  constexpr std::size_t kLeast = std::size_t{1} << 20;
  const std::size_t wanted =
      std::max(std::size_t{1} << 30, 8 * properties(device).last_level_cache_bytes) / 4096 * 4096;
  return std::max(kLeast, std::min(wanted, free_memory_bytes(device) / 8 / 4096 * 4096));
}

cudaStream_t handle(StreamView stream) {
  return static_cast<cudaStream_t>(stream.handle);
}

class CudaCopy final : public CopyWorkload {
 public:
  CudaCopy(const Context& context, std::size_t bytes)
      : stream_(context.stream), source_(*context.allocator, bytes), destination_(*context.allocator, bytes) {
    fill_random_fp32(source_.data(), bytes / sizeof(float), 0, stream_);
    const int multiprocessors = properties(context.device()).multiprocessors;
    for (const Shape& shape : kShapes) {
      blocks_.push_back(blocks_for(copy_kernel_of(shape.unroll), shape, vectors(), multiprocessors));
    }
  }
  [[nodiscard]] double amount() const override { return 2 * static_cast<double>(bytes()); }
  [[nodiscard]] std::size_t bytes() const override { return source_.bytes(); }
  [[nodiscard]] const void* source() const override { return source_.data(); }
  [[nodiscard]] void* destination() const override { return destination_.data(); }
  [[nodiscard]] int variants() const override { return static_cast<int>(kShapes.size()) + 1; }
  [[nodiscard]] std::string variant_name(int variant) const override {
    return variant == kDriver ? "cudaMemcpyAsync" : shape_name(kShapes[static_cast<std::size_t>(variant)]);
  }
  void enqueue(int variant) override {
    if (variant == kDriver) {
      copy_bytes(destination_.data(), stream_.device, source_.data(), stream_.device, bytes(), stream_);
      return;
    }
    const auto index = static_cast<std::size_t>(variant);
    copy_kernel_of(kShapes[index].unroll)<<<blocks_[index], kThreads, 0, handle(stream_)>>>(
        static_cast<uint4*>(destination_.data()), static_cast<const uint4*>(source_.data()), vectors());
    check_launch();
  }

 private:
  static constexpr int kDriver = static_cast<int>(kShapes.size());
  [[nodiscard]] std::size_t vectors() const { return bytes() / kVectorBytes; }

  StreamView stream_;
  HarnessBuffer source_, destination_;
  std::vector<unsigned> blocks_;
};

class CudaRead final : public ReadWorkload {
 public:
  CudaRead(const Context& context, std::size_t bytes) : stream_(context.stream), source_(*context.allocator, bytes) {
    fill_random_fp32(source_.data(), bytes / sizeof(float), 0, stream_);
    const int multiprocessors = properties(context.device()).multiprocessors;
    unsigned most = 1;
    for (const Shape& shape : kShapes) {
      blocks_.push_back(blocks_for(read_kernel_of(shape.unroll), shape, vectors(), multiprocessors));
      most = std::max(most, blocks_.back());
    }
    sums_ = HarnessBuffer(*context.allocator, most * sizeof(unsigned));
  }
  [[nodiscard]] double amount() const override { return static_cast<double>(bytes()); }
  [[nodiscard]] std::size_t bytes() const override { return source_.bytes(); }
  [[nodiscard]] const void* source() const override { return source_.data(); }
  [[nodiscard]] std::uint32_t checksum() const override {
    std::vector<unsigned> sums(last_blocks_);
    copy_bytes(sums.data(), Device::cpu(), sums_.data(), stream_.device, sums.size() * sizeof(unsigned), stream_);
    synchronize(stream_);
    std::uint32_t total = 0;
    for (const unsigned sum : sums) total += sum;
    return total;
  }
  [[nodiscard]] int variants() const override { return static_cast<int>(kShapes.size()); }
  [[nodiscard]] std::string variant_name(int variant) const override {
    return shape_name(kShapes[static_cast<std::size_t>(variant)]);
  }
  void enqueue(int variant) override {
    const auto index = static_cast<std::size_t>(variant);
    last_blocks_ = blocks_[index];
    read_kernel_of(kShapes[index].unroll)<<<blocks_[index], kThreads, 0, handle(stream_)>>>(
        static_cast<unsigned*>(sums_.data()), static_cast<const uint4*>(source_.data()), vectors());
    check_launch();
  }

 private:
  [[nodiscard]] std::size_t vectors() const { return bytes() / kVectorBytes; }

  StreamView stream_;
  HarnessBuffer source_, sums_;
  std::vector<unsigned> blocks_;
  unsigned last_blocks_ = 0;
};

}  // namespace

std::unique_ptr<CopyWorkload> make_copy_cuda(const Context& context, std::size_t bytes) {
  return std::make_unique<CudaCopy>(context, bytes > 0 ? bytes : default_bytes(context.device()));
}

std::unique_ptr<ReadWorkload> make_read_cuda(const Context& context, std::size_t bytes) {
  return std::make_unique<CudaRead>(context, bytes > 0 ? bytes : default_bytes(context.device()));
}

}  // namespace warpmeter::ceilings::detail
