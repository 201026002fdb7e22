// Copy, read and traffic kernels that reach the memory's peak.
//
// All: 16-byte accesses, a warp's 32 of them contiguous, kUnroll in flight a thread. A block works on tiles of
// kThreads * kUnroll vectors: tile t starts at vector t * kThreads * kUnroll, and thread i of it takes i, i + kThreads,
// ... The grid is one block a tile, or as many blocks as fit at once, which then stride over the tiles. Data are used
// once: loads and stores carry the evict-first hint (ld.cs, st.cs).
// Read: the words are added up, modulo 2^32; each block writes its sum, so that no load can be left out.
// Traffic: tiles of the larger buffer; the first vectors of each are copied, as many as its share of the smaller
// buffer, and the others read and added up, or written with numbers that count up.
#include <algorithm>
#include <array>
#include <vector>

#include <cuda_runtime.h>

#include "kernels/ceilings/cuda/fill.hpp"
#include "kernels/ceilings/detail/backends.hpp"
#include "kernels/ceilings/detail/harness_buffer.hpp"
#include "kernels/ceilings/detail/traffic_mix.hpp"
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

/// block_sums[blockIdx.x] = the sum of the block's `sum`.
__device__ void write_block_sum(unsigned* block_sums, unsigned sum) {
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
  write_block_sum(block_sums, sum);
}

/// Vectors of the smaller buffer that go together, a warp's: what a tile has of it begins at whole 512 bytes.
constexpr std::size_t kTrafficGrain = 32;

__device__ uint4 made_vector(std::size_t index) {
  const unsigned word = static_cast<unsigned>(index) * 0x9E3779B9u;
  return {word, word + 0x7F4A7C15u, ~word, word ^ 0x94D049BBu};
}

/// kWritesMore: the destination is the larger buffer, or they are alike; else block_sums get what was read only.
template <int kUnroll, bool kWritesMore>
__global__ __launch_bounds__(kThreads) void traffic_kernel(unsigned* __restrict__ block_sums,
                                                           uint4* __restrict__ destination,
                                                           const uint4* __restrict__ source, TrafficMix mix) {
  constexpr std::size_t kTile = static_cast<std::size_t>(kThreads) * kUnroll;
  unsigned sum = 0;
  const std::size_t tiles = mix.tiles();
  for (std::size_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const std::size_t begin = tile * kTile, left = mix.larger() - begin;
    const unsigned vectors = left < kTile ? static_cast<unsigned>(left) : static_cast<unsigned>(kTile);
    const std::size_t first = mix.first(tile);
    const unsigned copied = static_cast<unsigned>(mix.first(tile + 1) - first);
    const uint4* const from = source + (kWritesMore ? first : begin);
    uint4* const to = destination + (kWritesMore ? begin : first);
    const unsigned read = kWritesMore ? copied : vectors, written = kWritesMore ? vectors : copied;
    uint4 values[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const unsigned at = threadIdx.x + i * kThreads;
      values[i] = at < read ? __ldcs(from + at) : kWritesMore ? made_vector(begin + at) : uint4{0, 0, 0, 0};
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const unsigned at = threadIdx.x + i * kThreads;
      if (at < written) {
        __stcs(to + at, values[i]);
      } else if (!kWritesMore) {
        sum += sum_of(values[i]);
      }
    }
  }
  if constexpr (!kWritesMore) write_block_sum(block_sums, sum);
}

/// One way to launch a kernel. `waves` 0: one block a tile; else that many times the blocks that fit at once.
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
using TrafficKernel = void (*)(unsigned*, uint4*, const uint4*, TrafficMix);

CopyKernel copy_kernel_of(int unroll) {
  return unroll == 2 ? copy_kernel<2> : unroll == 4 ? copy_kernel<4> : copy_kernel<8>;
}
ReadKernel read_kernel_of(int unroll) {
  return unroll == 2 ? read_kernel<2> : unroll == 4 ? read_kernel<4> : read_kernel<8>;
}
template <bool kWritesMore>
TrafficKernel traffic_kernel_of(int unroll) {
  return unroll == 2   ? traffic_kernel<2, kWritesMore>
         : unroll == 4 ? traffic_kernel<4, kWritesMore>
                       : traffic_kernel<8, kWritesMore>;
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

std::uint32_t total_of(const HarnessBuffer& block_sums, unsigned blocks, StreamView stream) {
  std::vector<unsigned> sums(blocks);
  copy_bytes(sums.data(), Device::cpu(), block_sums.data(), stream.device, sums.size() * sizeof(unsigned), stream);
  synchronize(stream);
  std::uint32_t total = 0;
  for (const unsigned sum : sums) total += sum;
  return total;
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
  [[nodiscard]] std::uint32_t checksum() const override { return total_of(sums_, last_blocks_, stream_); }
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

class CudaTraffic final : public TrafficWorkload {
 public:
  CudaTraffic(const Context& context, std::size_t read_bytes, std::size_t written_bytes)
      : stream_(context.stream),
        source_(*context.allocator, read_bytes),
        destination_(*context.allocator, written_bytes) {
    if (read_bytes > 0) fill_random_fp32(source_.data(), read_bytes / sizeof(float), 0, stream_);
    const int multiprocessors = properties(context.device()).multiprocessors;
    unsigned most = 1;
    for (const Shape& shape : kShapes) {
      blocks_.push_back(blocks_for(kernel_of(shape), shape, larger(), multiprocessors));
      most = std::max(most, blocks_.back());
    }
    sums_ = HarnessBuffer(*context.allocator, most * sizeof(unsigned));
  }
  [[nodiscard]] double amount() const override {
    return static_cast<double>(read_bytes()) + static_cast<double>(written_bytes());
  }
  [[nodiscard]] std::size_t read_bytes() const override { return source_.bytes(); }
  [[nodiscard]] std::size_t written_bytes() const override { return destination_.bytes(); }
  [[nodiscard]] const void* source() const override { return source_.data(); }
  [[nodiscard]] void* destination() const override { return destination_.data(); }
  [[nodiscard]] std::uint32_t checksum() const override {
    return last_blocks_ == 0 ? 0 : total_of(sums_, last_blocks_, stream_);
  }
  [[nodiscard]] int variants() const override {
    return static_cast<int>(kShapes.size()) + (read_bytes() == written_bytes() ? 1 : 0);
  }
  [[nodiscard]] std::string variant_name(int variant) const override {
    return variant == kDriver ? "cudaMemcpyAsync" : shape_name(kShapes[static_cast<std::size_t>(variant)]);
  }
  void enqueue(int variant) override {
    if (variant == kDriver) {
      copy_bytes(destination_.data(), stream_.device, source_.data(), stream_.device, read_bytes(), stream_);
      return;
    }
    const auto index = static_cast<std::size_t>(variant);
    last_blocks_ = writes_more() ? 0 : blocks_[index];
    const std::size_t tile = kThreads * static_cast<std::size_t>(kShapes[index].unroll);
    const std::size_t smaller = std::min(read_bytes(), written_bytes()) / kVectorBytes;
    kernel_of(kShapes[index])<<<blocks_[index], kThreads, 0, handle(stream_)>>>(
        static_cast<unsigned*>(sums_.data()), static_cast<uint4*>(destination_.data()),
        static_cast<const uint4*>(source_.data()), TrafficMix(larger(), smaller, tile, kTrafficGrain));
    check_launch();
  }

 private:
  static constexpr int kDriver = static_cast<int>(kShapes.size());
  [[nodiscard]] bool writes_more() const { return written_bytes() >= read_bytes(); }
  [[nodiscard]] std::size_t larger() const { return std::max(read_bytes(), written_bytes()) / kVectorBytes; }
  [[nodiscard]] TrafficKernel kernel_of(const Shape& shape) const {
    return writes_more() ? traffic_kernel_of<true>(shape.unroll) : traffic_kernel_of<false>(shape.unroll);
  }

  StreamView stream_;
  HarnessBuffer source_, destination_, sums_;
  std::vector<unsigned> blocks_;
  unsigned last_blocks_ = 0;  ///< that wrote sums
};

}  // namespace

std::unique_ptr<CopyWorkload> make_copy_cuda(const Context& context, std::size_t bytes) {
  return std::make_unique<CudaCopy>(context, bytes > 0 ? bytes : default_bytes(context.device()));
}

std::unique_ptr<ReadWorkload> make_read_cuda(const Context& context, std::size_t bytes) {
  return std::make_unique<CudaRead>(context, bytes > 0 ? bytes : default_bytes(context.device()));
}

std::unique_ptr<TrafficWorkload> make_traffic_cuda(const Context& context, std::size_t read_bytes,
                                                   std::size_t written_bytes) {
  return std::make_unique<CudaTraffic>(context, read_bytes, written_bytes);
}

}  // namespace warpmeter::ceilings::detail
