// Over 600 lines: p2p, nccl and auto are held to the same expectations by one set of ranks and arrays.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/collectives/control.hpp"
#include "tests/kernels/collectives/gpu_ranks.hpp"
#include "tests/kernels/collectives/values.hpp"

namespace warpmeter::collectives {
namespace {

using ranks::launch_on_gpus;
using ranks::require;

constexpr DType kTypes[] = {DType::fp32, DType::bf16, DType::fp16, DType::int32};
constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::avg, ReduceOp::max, ReduceOp::min};
constexpr int kMostRanks = 4;
constexpr std::int64_t kLargest = (std::int64_t{1} << 20) + 3;
constexpr std::int64_t kSlack = 64;
constexpr std::int64_t kChecked = 20000;  ///< elements of a result that are held against fp64; more are sampled

/// Rank r's input: the first elements of these. Made once, before the ranks start, which inherit it.
const char* data_of(DType dtype, int rank) {
  static std::map<std::pair<DType, int>, std::vector<char>> made;
  std::vector<char>& data = made[{dtype, rank}];
  if (data.empty()) {
    data.resize(static_cast<std::size_t>(kLargest) * size_of(dtype));
    for (std::int64_t i = 0; i < kLargest; ++i) {
      values::write_random(dtype, data.data(), i, static_cast<std::uint64_t>(rank));
      // No overflow of int32's sums: NCCL's avg would have it wrap.
      if (dtype == DType::int32) {
        std::int32_t v;
        std::memcpy(&v, data.data() + i * 4, 4);
        v /= 8;
        std::memcpy(data.data() + i * 4, &v, 4);
      }
    }
  }
  return data.data();
}

void make_data() {
  for (const DType dtype : kTypes) {
    for (int rank = 0; rank < kMostRanks; ++rank) (void)data_of(dtype, rank);
  }
}

struct Limits {
  bool any_address = true;           ///< else multiples of the element's size
  bool same_bits = true;             ///< rank order and one rounding, as ReduceOp says
  std::int64_t scattered_bytes = 1;  ///< of which reduce_scatter's parts are multiples
};

/// One rank of a test. Arrays lie at random: the communicator's memory or other memory, in place or not, at random
/// addresses, each rank on its own.
class GpuRank {
 public:
  GpuRank(Communicator& communicator, const RankContext& context, Limits limits)
      : communicator_(communicator),
        control_(*context.control),
        device_(context.device),
        limits_(limits),
        random_(static_cast<std::uint64_t>(context.rank) + 77) {
    const auto bytes = static_cast<std::size_t>(kLargest * 4 * context.world_size + 2 * kSlack);
    bytes_ = bytes;
    for (std::size_t i = 0; i < 2; ++i) {
      shared_[i] = communicator.allocate(bytes);
      WM_CUDA_CHECK(cudaMalloc(&own_[i], bytes));
    }
    WM_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  ~GpuRank() {
    for (void* memory : own_) (void)cudaFree(memory);
    (void)cudaStreamDestroy(stream_);
  }
  GpuRank(const GpuRank&) = delete;
  GpuRank& operator=(const GpuRank&) = delete;

  void all_reduce(DType dtype, ReduceOp op, std::int64_t count) {
    const std::string what = text("all_reduce", dtype, count) + " " + std::string(name(op));
    const auto bytes = count * element(dtype);
    each_place(what, dtype, bytes, bytes, 0, 0, [&](char* in, char* out) {
      return communicator_.all_reduce_async({in, count, dtype, device_}, {out, count, dtype, device_}, op, view());
    });
    check_reduction(dtype, op, 0, count, what);
    if (limits_.same_bits) same_on_all_ranks(what);
  }
  void reduce_scatter(DType dtype, ReduceOp op, std::int64_t block) {
    while (block * element(dtype) % limits_.scattered_bytes != 0) --block;
    const std::string what = text("reduce_scatter", dtype, block * size()) + " " + std::string(name(op));
    const auto bytes = block * element(dtype);
    each_place(what, dtype, bytes * size(), bytes, 0, bytes * rank(), [&](char* in, char* out) {
      return communicator_.reduce_scatter_async({in, block * size(), dtype, device_}, {out, block, dtype, device_}, op,
                                                view());
    });
    check_reduction(dtype, op, block * rank(), block, what);
  }
  void all_gather(DType dtype, std::int64_t block) {
    const std::string what = text("all_gather", dtype, block * size());
    const auto bytes = block * element(dtype);
    each_place(what, dtype, bytes, bytes * size(), bytes * rank(), 0, [&](char* in, char* out) {
      return communicator_.all_gather_async({in, block, dtype, device_}, {out, block * size(), dtype, device_}, view());
    });
    for (int r = 0; r < size(); ++r) {
      require(bytes == 0 ||
                  std::memcmp(result_.data() + r * bytes, data_of(dtype, r), static_cast<std::size_t>(bytes)) == 0,
              what + ": part of rank " + std::to_string(r));
    }
  }
  void broadcast(DType dtype, std::int64_t count, int root) {
    const std::string what = text("broadcast", dtype, count) + " from " + std::to_string(root);
    const auto bytes = count * element(dtype);
    each_place(what, dtype, bytes, bytes, 0, 0, [&](char* in, char* out) {
      return communicator_.broadcast_async({in, count, dtype, device_}, {out, count, dtype, device_}, root, view());
    });
    require(bytes == 0 || std::memcmp(result_.data(), data_of(dtype, root), static_cast<std::size_t>(bytes)) == 0,
            what);
  }
  /// Rank r's piece has counts[r] elements. Each piece at random in any of the arrays, on each rank in another.
  void all_gather_v(DType dtype, const std::vector<std::int64_t>& counts) {
    const std::string what = text("all_gather_v", dtype, counts.front());
    for (int place = 0; place < places; ++place) {
      std::vector<CollectiveBuffer> pieces;
      const bool shared = place == 0 || pick(2) == 0;  // else each as it comes
      for (int r = 0; r < size(); ++r) {
        const auto count = counts[static_cast<std::size_t>(r)];
        const auto bytes = static_cast<std::size_t>(count * element(dtype));
        std::int64_t shift = place == 0 ? 0 : pick(4) == 0 ? pick(17) : pick(4) * 4;
        if (!limits_.any_address) shift = shift / element(dtype) * element(dtype);
        const auto array = static_cast<std::size_t>(pick(2));
        char* base = static_cast<char*>(shared || pick(2) == 0 ? shared_[array].data() : own_[array]);
        char* data = base + kSlack + r * kLargest * 4 + shift;
        pieces.emplace_back(data, count, dtype, device_);
        WM_CUDA_CHECK(cudaMemsetAsync(data - 8, 0xFF, bytes + 16, stream_));
        if (r == rank() && count > 0) {
          WM_CUDA_CHECK(cudaMemcpyAsync(data, data_of(dtype, r), bytes, cudaMemcpyHostToDevice, stream_));
        }
      }
      communicator_.all_gather_v_async(pieces, view()).wait();
      for (int r = 0; r < size(); ++r) {
        const CollectiveBuffer& piece = pieces[static_cast<std::size_t>(r)];
        const std::string where = what + ", place " + std::to_string(place) + ", rank " + std::to_string(rank()) +
                                  ": piece of rank " + std::to_string(r);
        std::vector<char> got(piece.bytes() + 16);
        WM_CUDA_CHECK(cudaMemcpy(got.data(), static_cast<char*>(piece.data) - 8, got.size(), cudaMemcpyDeviceToHost));
        for (std::size_t i = 0; i < 8; ++i) {
          require(got[i] == '\xFF' && got[got.size() - 1 - i] == '\xFF', where + ": written beside it");
        }
        require(std::memcmp(got.data() + 8, data_of(dtype, r), piece.bytes()) == 0, where);
      }
    }
  }
  void everything(const std::vector<std::int64_t>& counts) {
    for (const std::int64_t count : counts) {
      const std::int64_t block = std::min(count, kLargest / size());
      for (const DType dtype : kTypes) {
        for (const ReduceOp op : kOps) {
          all_reduce(dtype, op, count);
          reduce_scatter(dtype, op, block);
        }
        all_gather(dtype, block);
        broadcast(dtype, count, 0);
        broadcast(dtype, count, size() - 1);
        std::vector<std::int64_t> pieces;
        for (int r = 0; r < size(); ++r) pieces.push_back(block / (1 + (count + r) % size()) + r);
        all_gather_v(dtype, pieces);
        pieces.back() = 0;
        all_gather_v(dtype, pieces);
        communicator_.barrier(view());
      }
    }
  }
  int places = 3;  ///< random ones of each call

 private:
  [[nodiscard]] int rank() const { return communicator_.rank(); }
  [[nodiscard]] int size() const { return communicator_.world_size(); }
  [[nodiscard]] StreamView view() const { return {device_, stream_}; }
  static std::int64_t element(DType dtype) { return static_cast<std::int64_t>(size_of(dtype)); }
  static std::string text(const char* kind, DType dtype, std::int64_t count) {
    return std::string(kind) + " of " + std::to_string(count) + " " + std::string(name(dtype));
  }
  std::int64_t pick(std::int64_t n) {
    random_ = values::hash(random_, 3);
    return static_cast<std::int64_t>(random_ >> 8) % n;
  }

  template <class Call>
  void each_place(const std::string& what, DType dtype, std::int64_t input_bytes, std::int64_t output_bytes,
                  std::int64_t input_at, std::int64_t output_at, const Call& call) {
    for (int place = 0; place < places; ++place) {
      // The first as fast as can be, out of place; the others at random.
      const bool in_place = place > 0 && pick(2) == 0;
      const bool shared_in = place == 0 || pick(3) > 0;
      const bool shared_out = place == 0 || pick(3) > 0;
      std::int64_t shift = place == 0 ? 0 : pick(4) == 0 ? pick(17) : pick(2) * 4;
      if (!limits_.any_address) shift = shift / element(dtype) * element(dtype);
      char* one = static_cast<char*>(shared_in ? shared_[0].data() : own_[0]) + kSlack + shift;
      char* other = static_cast<char*>(shared_out ? shared_[1].data() : own_[1]) + kSlack + (place == 2 ? 0 : shift);
      char* in = in_place ? one + input_at : one;
      char* out = in_place ? one + output_at : other;
      const auto clear = [&](char* p, std::int64_t bytes) {
        WM_CUDA_CHECK(cudaMemsetAsync(p - 8, 0xFF, static_cast<std::size_t>(bytes + 16), stream_));
      };
      clear(one, std::max(input_bytes + input_at, output_bytes + output_at));
      if (!in_place) clear(other, output_bytes);
      if (input_bytes > 0) {
        WM_CUDA_CHECK(cudaMemcpyAsync(in, data_of(dtype, rank()), static_cast<std::size_t>(input_bytes),
                                      cudaMemcpyHostToDevice, stream_));
      }
      const Work work = call(in, out);
      work.wait();
      const std::string where = what + ", place " + std::to_string(place) + (in_place ? ", in place" : "") +
                                (shared_in ? ", in: communicator's" : "") +
                                (shared_out ? ", out: communicator's" : "") + ", shift " + std::to_string(shift) +
                                ", rank " + std::to_string(rank());
      std::vector<char> got(static_cast<std::size_t>(output_bytes + 16));
      WM_CUDA_CHECK(cudaMemcpy(got.data(), out - 8, got.size(), cudaMemcpyDeviceToHost));
      const auto untouched = [&](std::size_t at) {
        return std::all_of(got.begin() + static_cast<std::ptrdiff_t>(at),
                           got.begin() + static_cast<std::ptrdiff_t>(at + 8), [](char c) { return c == '\xFF'; });
      };
      if (!in_place) require(untouched(0) && untouched(got.size() - 8), where + ": written beside the array");
      got.erase(got.end() - 8, got.end());
      got.erase(got.begin(), got.begin() + 8);
      if (!in_place && input_bytes > 0) {
        std::vector<char> still(static_cast<std::size_t>(input_bytes));
        WM_CUDA_CHECK(cudaMemcpy(still.data(), in, still.size(), cudaMemcpyDeviceToHost));
        require(std::memcmp(still.data(), data_of(dtype, rank()), still.size()) == 0, where + ": input changed");
      }
      if (place == 0) {
        result_ = got;
      } else if (limits_.same_bits) {
        require(got == result_, where + ": not the bits of the first place");
      }
    }
  }

  void same_on_all_ranks(const std::string& what) {
    std::uint64_t sum = 0xCBF29CE484222325ULL;
    for (std::size_t i = 0; i + 8 <= result_.size(); i += 8) {
      std::uint64_t word;
      std::memcpy(&word, result_.data() + i, 8);
      sum = (sum ^ word) * 0x100000001B3ULL;
    }
    const std::vector<std::string> all = all_gather_bytes(control_, std::to_string(sum));
    require(std::count(all.begin(), all.end(), all[0]) == size(), what + ": ranks have other bits");
  }

  void check_reduction(DType dtype, ReduceOp op, std::int64_t begin, std::int64_t count, const std::string& what) {
    std::vector<double> elements(static_cast<std::size_t>(size()));
    const std::int64_t step = std::max<std::int64_t>(1, count / kChecked);
    for (std::int64_t i = 0; i<count; i += i + 4000> count || i < 4000 ? 1 : step) {
      for (int r = 0; r < size(); ++r) {
        elements[static_cast<std::size_t>(r)] = values::read(dtype, data_of(dtype, r), begin + i);
      }
      values::Expected want = values::expected(dtype, op, elements);
      if (!limits_.same_bits && want.tolerance > 0) want.tolerance *= 2;  // roundings on the way
      const double got = values::read(dtype, result_.data(), i);
      if (std::fabs(got - want.value) <= want.tolerance) continue;  // not so for a NaN
      require(false, what + ": element " + std::to_string(i) + " is " + std::to_string(got) + ", not " +
                         std::to_string(want.value));
    }
  }

  Communicator& communicator_;
  Communicator& control_;
  Device device_;
  Limits limits_;
  std::uint64_t random_;
  std::size_t bytes_ = 0;
  std::array<CommunicatorBuffer, 2> shared_;
  std::array<void*, 2> own_ = {};
  cudaStream_t stream_ = nullptr;
  std::vector<char> result_;
};

P2pOptions p2p_options(const RankContext& context) {
  P2pOptions options;
  options.timeout_s = context.options.timeout_s;
  options.share_gpus = ranks::gpus() < context.world_size;
  return options;
}

TEST(P2pGpu, EveryCollectiveTypeAndOperation) {
  WM_NEED_GPUS(2);
  make_data();
  const LaunchReport report = launch_on_gpus(2, [&](const RankContext& context) {
    const auto communicator = make_p2p(context, p2p_options(context));
    GpuRank(*communicator, context, {}).everything({0, 1, 3, 17, 1000, 70001, kLargest});
  });
  EXPECT_TRUE(report.ok()) << report.reason;
}

TEST(P2pGpu, EachProtocolAtEverySize) {
  WM_NEED_GPUS(2);
  make_data();
  const LaunchReport report = launch_on_gpus(2, [&](const RankContext& context) {
    for (const std::int64_t small_max : {std::int64_t{0}, std::int64_t{1} << 30}) {
      for (const int blocks : {3, 128}) {
        P2pOptions options = p2p_options(context);
        options.small_max_bytes = small_max;
        options.max_blocks = blocks;
        options.bulk_blocks = blocks;
        const auto communicator = make_p2p(context, options);
        GpuRank rank(*communicator, context, {});
        rank.places = 4;
        rank.everything({1, 17, 4099, 200003});
      }
    }
  });
  EXPECT_TRUE(report.ok()) << report.reason;
}

TEST(P2pGpu, ThreeAndFourRanksTwoAGpu) {
  WM_NEED_GPUS(1);
  make_data();
  for (const int world : {3, 4}) {
    const LaunchReport report = launch_on_gpus(world, [&](const RankContext& context) {
      for (const std::int64_t small_max : {-1, 0}) {
        P2pOptions options = p2p_options(context);
        options.small_max_bytes = small_max;
        options.max_blocks = 8;  // all ranks' blocks have room on the GPU at once
        const auto communicator = make_p2p(context, options);
        GpuRank rank(*communicator, context, {});
        rank.places = 2;
        for (const ReduceOp op : kOps) {
          rank.all_reduce(DType::bf16, op, 1001);
          rank.reduce_scatter(DType::int32, op, 333);
        }
        rank.all_reduce(DType::fp32, ReduceOp::avg, 70001);
        rank.reduce_scatter(DType::fp16, ReduceOp::sum, 20001);
        rank.all_gather(DType::fp32, 7001);
        std::vector<std::int64_t> pieces = {7001, 0, 20001, 3};
        pieces.resize(static_cast<std::size_t>(world));
        rank.all_gather_v(DType::bf16, pieces);
        rank.broadcast(DType::bf16, 70001, world - 1);
      }
    });
    EXPECT_TRUE(report.ok()) << report.reason;
  }
}

/// The arrays of the tests below: fp32 on the device.
struct Array {
  explicit Array(Communicator& communicator, std::int64_t elements, Device where)
      : memory(communicator.allocate(static_cast<std::size_t>(elements) * 4)), count(elements), device(where) {}
  [[nodiscard]] CollectiveBuffer view() const { return {memory.data(), count, DType::fp32, device}; }
  void set(float value, cudaStream_t stream) const {
    const std::vector<float> host(static_cast<std::size_t>(count), value);
    WM_CUDA_CHECK(cudaMemcpyAsync(memory.data(), host.data(), host.size() * 4, cudaMemcpyHostToDevice, stream));
    WM_CUDA_CHECK(cudaStreamSynchronize(stream));
  }
  [[nodiscard]] bool is(float value) const {
    std::vector<float> host(static_cast<std::size_t>(count));
    WM_CUDA_CHECK(cudaMemcpy(host.data(), memory.data(), host.size() * 4, cudaMemcpyDeviceToHost));
    return std::all_of(host.begin(), host.end(), [value](float v) { return v == value; });
  }
  CommunicatorBuffer memory;
  std::int64_t count;
  Device device;
};

void check_graph(Communicator& communicator, const RankContext& context) {
  const Stream stream(context.device);
  auto* handle = static_cast<cudaStream_t>(stream.view().handle);
  const Array few(communicator, 1000, context.device);
  const Array many(communicator, 1 << 20, context.device);
  for (const Array* array : {&few, &many}) {  // not captured: what starts up, starts up
    array->set(1, handle);
    communicator.all_reduce(array->view(), array->view(), ReduceOp::sum, stream);
  }
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  WM_CUDA_CHECK(cudaStreamBeginCapture(handle, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < 2; ++i) {
    const Work work = communicator.all_reduce_async(few.view(), few.view(), ReduceOp::sum, stream);
    require(work.done(), "a captured call has nothing to wait for");
    (void)communicator.all_reduce_async(many.view(), many.view(), ReduceOp::sum, stream);
    (void)communicator.barrier_async(stream);
  }
  WM_CUDA_CHECK(cudaStreamEndCapture(handle, &graph));
  WM_CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
  for (int round = 0; round < 30; ++round) {
    const auto value = static_cast<float>(context.rank + round);
    few.set(value, handle);
    many.set(value + 1, handle);
    WM_CUDA_CHECK(cudaGraphLaunch(executable, handle));
    if (round % 3 == 0) communicator.barrier(stream);  // calls beside the graph's
    WM_CUDA_CHECK(cudaStreamSynchronize(handle));
    // Twice reduced: n times the sum.
    const auto n = static_cast<float>(context.world_size);
    const float sum = n * static_cast<float>(round) + n * (n - 1) / 2;
    require(few.is(n * sum) && many.is(n * (sum + n)), "replay " + std::to_string(round));
  }
  (void)cudaGraphExecDestroy(executable);
  (void)cudaGraphDestroy(graph);
}

/// Calls on two streams in turn, on the same arrays: their order is that of the calls.
void check_streams(Communicator& communicator, const RankContext& context) {
  const Stream one(context.device);
  const Stream other(context.device);
  const Array few(communicator, 5000, context.device);
  const Array many(communicator, 1 << 20, context.device);
  few.set(1, static_cast<cudaStream_t>(one.view().handle));
  many.set(1, static_cast<cudaStream_t>(one.view().handle));
  const auto n = static_cast<float>(context.world_size);
  float expected = 1;
  std::vector<Work> works;
  for (int i = 0; i < 6; ++i) {
    const StreamView stream = i % 2 == 0 ? one.view() : other.view();
    works.push_back(communicator.all_reduce_async(few.view(), few.view(), ReduceOp::sum, stream));
    works.push_back(communicator.all_reduce_async(many.view(), many.view(), ReduceOp::sum, stream));
    expected *= n;
  }
  works.back().wait();
  for (const Work& work : works) require(work.done(), "in order");
  require(few.is(expected) && many.is(expected), "sums over two streams");
}

TEST(P2pGpu, GraphsAndStreams) {
  WM_NEED_GPUS(2);
  const LaunchReport report = launch_on_gpus(2, [&](const RankContext& context) {
    const auto communicator = make_p2p(context, p2p_options(context));
    check_streams(*communicator, context);
    check_graph(*communicator, context);
  });
  EXPECT_TRUE(report.ok()) << report.reason;
}

// Faster ranks meet slower ones at any point: thousands of calls of changing size without the host's waiting.
TEST(P2pGpu, ManyCallsInFlight) {
  WM_NEED_GPUS(2);
  const LaunchReport report = launch_on_gpus(2, [&](const RankContext& context) {
    const auto communicator = make_p2p(context, p2p_options(context));
    const Stream stream(context.device);
    auto* handle = static_cast<cudaStream_t>(stream.view().handle);
    const Array array(*communicator, 1 << 19, context.device);
    array.set(context.rank == 0 ? 3.0F : 5.0F, handle);
    std::uint64_t h = 5;
    Work last;
    for (int i = 0; i < 5000; ++i) {
      h = values::hash(h, 1);
      const auto count = static_cast<std::int64_t>(h % 16 == 0 ? array.count : h / 16 % 30000 + 1);
      const CollectiveBuffer part(array.memory.data(), count, DType::fp32, context.device);
      // The largest of the ranks' elements stays what it is from then on.
      last = communicator->all_reduce_async(part, part, ReduceOp::max, stream);
      if ((h >> 40) % 500 == static_cast<std::uint64_t>(context.rank)) {
        WM_CUDA_CHECK(cudaStreamSynchronize(handle));
      }
    }
    last.wait();
    require(array.is(5), "the maximum");
  });
  EXPECT_TRUE(report.ok()) << report.reason;
}

TEST(P2pGpu, NaNIsTheMaximumAndTheMinimum) {
  WM_NEED_GPUS(1);
  const LaunchReport report = launch_on_gpus(2, [&](const RankContext& context) {
    const auto communicator = make_p2p(context, p2p_options(context));
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> mine = context.rank == 0 ? std::vector<float>{nan, 1, 2} : std::vector<float>{1, nan, 3};
    const Array array(*communicator, 3, context.device);
    for (const ReduceOp op : {ReduceOp::max, ReduceOp::min}) {
      WM_CUDA_CHECK(cudaMemcpy(array.memory.data(), mine.data(), 12, cudaMemcpyHostToDevice));
      communicator->all_reduce(array.view(), array.view(), op);
      std::vector<float> got(3);
      WM_CUDA_CHECK(cudaMemcpy(got.data(), array.memory.data(), 12, cudaMemcpyDeviceToHost));
      require(std::isnan(got[0]) && std::isnan(got[1]) && got[2] == (op == ReduceOp::max ? 3.0F : 2.0F), "NaN");
    }
  });
  EXPECT_TRUE(report.ok()) << report.reason;
}

TEST(P2pGpu, MemoryIsGivenBackAndGivenOutAgain) {
  WM_NEED_GPUS(1);
  const LaunchReport report = launch_on_gpus(2, [&](const RankContext& context) {
    const auto communicator = make_p2p(context, p2p_options(context));
    (void)communicator->allocate(1);
    std::size_t before = 0, after = 0, total = 0;
    WM_CUDA_CHECK(cudaMemGetInfo(&before, &total));
    context.control->barrier();
    for (int round = 0; round < 6; ++round) {
      const Array array(*communicator, 1 << 24, context.device);
      array.set(2, nullptr);
      communicator->all_reduce(array.view(), array.view(), ReduceOp::avg);
      require(array.is(2), "round " + std::to_string(round));
    }
    (void)communicator->allocate(1);
    context.control->barrier();
    WM_CUDA_CHECK(cudaMemGetInfo(&after, &total));
    require(after + (std::size_t{96} << 20) > before, "memory is lost: " + std::to_string(before - after));
  });
  EXPECT_TRUE(report.ok()) << report.reason;
}

#if WARPMETER_NCCL
class NcclGpu : public testing::TestWithParam<NcclRegistration> {};

TEST_P(NcclGpu, EveryCollectiveTypeAndOperation) {
  WM_NEED_GPUS(2);
  make_data();
  const LaunchReport report = launch_on_gpus(2, [&](const RankContext& context) {
    NcclOptions options;
    options.timeout_s = context.options.timeout_s;
    options.registration = GetParam();
    const auto communicator = make_nccl(context, options);
    Limits limits;
    limits.any_address = false;
    limits.same_bits = false;
    if (GetParam() == NcclRegistration::symmetric) limits.scattered_bytes = 16;
    GpuRank rank(*communicator, context, limits);
    // Registered memory is to be so on all ranks or on none.
    rank.places = GetParam() == NcclRegistration::none ? 3 : 1;
    rank.everything({0, 1, 3, 17, 1000, 70001, kLargest});
  });
  EXPECT_TRUE(report.ok()) << report.reason;
}

TEST(NcclPiecesGpu, SendsDoAsBroadcasts) {
  WM_NEED_GPUS(2);
  make_data();
  const LaunchReport report = launch_on_gpus(2, [&](const RankContext& context) {
    NcclOptions options;
    options.timeout_s = context.options.timeout_s;
    options.pieces = NcclPieces::sends;
    const auto communicator = make_nccl(context, options);
    Limits limits;
    limits.any_address = false;
    GpuRank rank(*communicator, context, limits);
    for (const std::vector<std::int64_t>& pieces :
         {std::vector<std::int64_t>{1, 1}, {0, 70001}, {70001, 0}, {100003, 517}, {0, 0}}) {
      rank.all_gather_v(DType::fp32, pieces);
      rank.all_gather_v(DType::bf16, pieces);
    }
  });
  EXPECT_TRUE(report.ok()) << report.reason;
}

TEST(NcclSymmetric, PartsThatItGetsWrongAreRefused) {
  WM_NEED_GPUS(2);
  const LaunchReport report = launch_on_gpus(2, [&](const RankContext& context) {
    NcclOptions options;
    options.timeout_s = context.options.timeout_s;
    options.registration = NcclRegistration::symmetric;
    const auto communicator = make_nccl(context, options);
    const CommunicatorBuffer from = communicator->allocate(4096);
    const CommunicatorBuffer to = communicator->allocate(4096);
    try {
      communicator->reduce_scatter({from.data(), 34, DType::bf16, context.device},
                                   {to.data(), 17, DType::bf16, context.device}, ReduceOp::sum);
      require(false, "parts of 34 bytes");
    } catch (const CollectiveError& error) {
      require(error.fault() == CollectiveFault::unsupported &&
                  std::string(error.what()).find("parts of 34 bytes") != std::string::npos,
              error.what());
    }
  });
  EXPECT_TRUE(report.ok()) << report.reason;
}

TEST_P(NcclGpu, GraphsAndStreams) {
  WM_NEED_GPUS(2);
  const LaunchReport report = launch_on_gpus(2, [&](const RankContext& context) {
    NcclOptions options;
    options.timeout_s = context.options.timeout_s;
    options.registration = GetParam();
    const auto communicator = make_nccl(context, options);
    check_streams(*communicator, context);
    check_graph(*communicator, context);
  });
  EXPECT_TRUE(report.ok()) << report.reason;
}

std::string registration_name(const testing::TestParamInfo<NcclRegistration>& info) {
  return info.param == NcclRegistration::none         ? "none"
         : info.param == NcclRegistration::registered ? "registered"
                                                      : "symmetric";
}
INSTANTIATE_TEST_SUITE_P(Registrations, NcclGpu,
                         testing::Values(NcclRegistration::none, NcclRegistration::registered,
                                         NcclRegistration::symmetric),
                         registration_name);
#endif

TEST(AutoGpu, EveryCollectiveAcrossTheChange) {
  WM_NEED_GPUS(2);
  make_data();
  const LaunchReport report = launch_on_gpus(2, [&](const RankContext& context) {
    AutoOptions options;
    options.timeout_s = context.options.timeout_s;
    options.table = AutoTable::parse(
        "all_reduce nccl 1000 p2p 100000 nccl\nbroadcast p2p 1000 nccl\nall_gather nccl 1000 p2p\nreduce_scatter "
        "nccl\n");
    const auto communicator = make_auto(context, options);
    Limits limits;
    limits.any_address = false;
    limits.same_bits = false;
    GpuRank(*communicator, context, limits).everything({0, 17, 1000, 70001});
    check_streams(*communicator, context);
    check_graph(*communicator, context);
  });
  EXPECT_TRUE(report.ok()) << report.reason;
}

TEST(AutoGpu, MeasuresOneTableForAllRanks) {
  WM_NEED_GPUS(2);
  const LaunchReport report = launch_on_gpus(2, [&](const RankContext& context) {
    AutoOptions options;
    options.timeout_s = context.options.timeout_s;
    options.measure_up_to = std::size_t{16} << 20;
    const auto communicator = make_auto(context, options);
    const std::vector<std::string> all = all_gather_bytes(*context.control, table_of(*communicator).text());
    require(all[0] == all[1], "the ranks have two tables");
    require(AutoTable::parse(all[0]).text() == all[0], "the table reads back");
    check_streams(*communicator, context);
  });
  EXPECT_TRUE(report.ok()) << report.reason;
}

TEST(AutoGpu, ATableIsWrittenWhereThereIsNone) {
  WM_NEED_GPUS(2);
  const std::string path = testing::TempDir() + "auto_table_" + std::to_string(getpid()) + ".txt";
  const LaunchReport report = launch_on_gpus(2, [&](const RankContext& given) {
    RankContext context = given;
    context.options.auto_table = path;
    const std::string measured = table_of(*auto_backend().create(context)).text();
    context.control->barrier();
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    require(AutoTable::parse(text.str()).text() == measured, "the file: " + text.str());
    require(table_of(*auto_backend().create(context)).text() == measured, "read back");
  });
  std::remove(path.c_str());
  EXPECT_TRUE(report.ok()) << report.reason;
}

TEST(AutoGpu, ATableThatCannotBeUsedIsRefusedOnEveryRank) {
  WM_NEED_GPUS(1);
  const std::string path = testing::TempDir() + "auto_table_" + std::to_string(getpid()) + ".txt";
  std::ofstream(path) << "all_reduce gloo\n";
  const LaunchReport report = launch_on_gpus(2, [&](const RankContext& given) {
    RankContext context = given;
    for (const auto& [file, words] : {std::pair<std::string, std::string>{path, "accepted are p2p and nccl"},
                                      {"/nowhere/table", "can be neither read nor written"}}) {
      context.options.auto_table = file;
      try {
        (void)auto_backend().create(context);
        require(false, file);
      } catch (const DeviceError& error) {
        require(std::string(error.what()).find(words) != std::string::npos, error.what());
      }
    }
  });
  std::remove(path.c_str());
  EXPECT_TRUE(report.ok()) << report.reason;
}

TEST(GpuBackends, TwoRanksOnOneGpuAreRefusedAtOnce) {
  WM_NEED_GPUS(1);
  const LaunchReport report = launch_on_gpus(2, [&](const RankContext& given) {
    RankContext context = given;
    context.device = Device::cuda(0);
    WM_CUDA_CHECK(cudaSetDevice(0));
    const auto expect_refusal = [&](const auto& make) {
      try {
        (void)make();
        require(false, "two ranks on one GPU");
      } catch (const CollectiveError& error) {
        require(error.fault() == CollectiveFault::unsupported &&
                    std::string(error.what()).find("ranks 0 and 1 are both on the GPU") != std::string::npos,
                error.what());
      }
    };
    expect_refusal([&] { return make_p2p(context, {}); });
#if WARPMETER_NCCL
    if (nccl_backend().unavailable({}) == std::nullopt) expect_refusal([&] { return make_nccl(context, {}); });
#endif
  });
  EXPECT_TRUE(report.ok()) << report.reason;
}

TEST(GpuBackends, TheLinkIsMeasured) {
  WM_NEED_GPUS(2);
  const LaunchReport report = launch_on_gpus(2, [&](const RankContext& context) {
    const auto communicator = p2p_backend().create(context);
    const std::optional<double> gbps = p2p_backend().measure_link_gbps(context, *communicator);
    require(gbps && *gbps > 1 && *gbps < 5000, "GB/s: " + std::to_string(gbps.value_or(-1)));
    const std::vector<std::string> all = all_gather_bytes(*context.control, std::to_string(*gbps));
    require(all[0] == all[1], "the ranks have two figures");
  });
  EXPECT_TRUE(report.ok()) << report.reason;
}

}  // namespace
}  // namespace warpmeter::collectives
