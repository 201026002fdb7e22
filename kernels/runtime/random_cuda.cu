// Random fill on the GPU: the same bits as random_cpu.cpp.
//
// A thread computes whole Philox blocks, a grid's stride apart: four elements of 4 or 2 bytes, or two integers. Writes
// of a whole block are one vector store where the address allows it; the ends of the range go element by element.

#include <algorithm>
#include <cstdint>

#include "kernels/runtime/cuda_check.hpp"
#include "kernels/runtime/detail/random_fill.hpp"
#include "kernels/runtime/random_philox.hpp"

namespace warpmeter::detail {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerMultiprocessor = 16;

template <class Element, int kCount>
struct alignas(sizeof(Element) * kCount) Pack {
  Element values[kCount];
};

struct ToFloat {
  using Element = float;
  __device__ static float convert(float value) { return value; }
};
struct ToBf16 {
  using Element = std::uint16_t;
  __device__ static std::uint16_t convert(float value) { return philox::to_bf16(value); }
};
struct ToFp16 {
  using Element = std::uint16_t;
  __device__ static std::uint16_t convert(float value) { return philox::to_fp16(value); }
};

template <class To>
struct Normal {
  static constexpr int kCount = 4;
  using Element = typename To::Element;
  __device__ static Pack<Element, kCount> make(const philox::Words& w, const RandomFill& fill) {
    const philox::SinCos a = philox::box_muller(w.x0, w.x1);
    const philox::SinCos b = philox::box_muller(w.x2, w.x3);
    return {{To::convert(philox::mul(a.cos, fill.scale)), To::convert(philox::mul(a.sin, fill.scale)),
             To::convert(philox::mul(b.cos, fill.scale)), To::convert(philox::mul(b.sin, fill.scale))}};
  }
};

template <class To>
struct Uniform {
  static constexpr int kCount = 4;
  using Element = typename To::Element;
  __device__ static Element one(std::uint32_t word, const RandomFill& fill) {
    return To::convert(philox::uniform_value(word, fill.scale, fill.offset, fill.least, fill.most));
  }
  __device__ static Pack<Element, kCount> make(const philox::Words& w, const RandomFill& fill) {
    return {{one(w.x0, fill), one(w.x1, fill), one(w.x2, fill), one(w.x3, fill)}};
  }
};

template <class Integer>
struct Integers {
  static constexpr int kCount = 2;
  using Element = Integer;
  __device__ static Pack<Element, kCount> make(const philox::Words& w, const RandomFill& fill) {
    return {{static_cast<Integer>(philox::integer_value(w.x0, w.x1, fill.bound)),
             static_cast<Integer>(philox::integer_value(w.x2, w.x3, fill.bound))}};
  }
};

template <class Maker>
__global__ void __launch_bounds__(kThreads)
    random_fill_kernel(typename Maker::Element* data, std::uint64_t first, std::uint64_t count, RandomFill fill) {
  using Element = typename Maker::Element;
  using Values = Pack<Element, Maker::kCount>;
  const std::uint64_t end = first + count;
  const std::uint64_t stride = static_cast<std::uint64_t>(gridDim.x) * kThreads;
  for (std::uint64_t block = first / Maker::kCount + static_cast<std::uint64_t>(blockIdx.x) * kThreads + threadIdx.x;
       block * Maker::kCount < end; block += stride) {
    const Values values = Maker::make(philox::block_words(fill.seed, fill.stream_id, block), fill);
    const std::uint64_t element = block * Maker::kCount;
    Element* const out = data + static_cast<std::int64_t>(element - first);  // before data in the first block at most
    if (element >= first && element + Maker::kCount <= end &&
        reinterpret_cast<std::uintptr_t>(out) % sizeof(Values) == 0) {
      *reinterpret_cast<Values*>(out) = values;
      continue;
    }
#pragma unroll
    for (int k = 0; k < Maker::kCount; ++k) {
      if (element + k >= first && element + k < end) out[k] = values.values[k];
    }
  }
}

template <class Maker>
void launch(void* data, std::uint64_t first, std::uint64_t count, const RandomFill& fill, StreamView stream) {
  int multiprocessors = 0;
  WM_CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, stream.device.index));
  const std::uint64_t blocks = count / Maker::kCount + 2;
  const std::uint64_t wanted = (blocks + kThreads - 1) / kThreads;
  const auto grid = static_cast<unsigned>(
      std::min<std::uint64_t>(wanted, static_cast<std::uint64_t>(multiprocessors) * kBlocksPerMultiprocessor));
  random_fill_kernel<Maker><<<grid, kThreads, 0, static_cast<cudaStream_t>(stream.handle)>>>(
      static_cast<typename Maker::Element*>(data), first, count, fill);
  check_launch();
}

template <template <class> class Values>
void launch_values(void* data, std::uint64_t first, std::uint64_t count, const RandomFill& fill, StreamView stream) {
  switch (fill.dtype) {
    case DType::bf16:
      return launch<Values<ToBf16>>(data, first, count, fill, stream);
    case DType::fp16:
      return launch<Values<ToFp16>>(data, first, count, fill, stream);
    default:
      return launch<Values<ToFloat>>(data, first, count, fill, stream);
  }
}

}  // namespace

void random_fill_cuda(void* data, std::uint64_t first, std::int64_t count, const RandomFill& fill, StreamView stream) {
  if (count <= 0) return;
  const DeviceGuard guard(stream.device);
  const auto elements = static_cast<std::uint64_t>(count);
  switch (fill.distribution) {
    case Distribution::normal:
      return launch_values<Normal>(data, first, elements, fill, stream);
    case Distribution::uniform:
      return launch_values<Uniform>(data, first, elements, fill, stream);
    case Distribution::integers:
      if (fill.dtype == DType::int32) return launch<Integers<std::int32_t>>(data, first, elements, fill, stream);
      return launch<Integers<std::int64_t>>(data, first, elements, fill, stream);
  }
}

}  // namespace warpmeter::detail
