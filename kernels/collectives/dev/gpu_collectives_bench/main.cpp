// p2p, nccl and auto beside each other in one group of processes, in turn and back: in-stream time of single calls.
//
//   gpu_collectives_bench [--ranks 2] [--sizes 1024,65536,...] [--set main|blocks|small|nccl|memory|pieces] [--kind
//   all_reduce]
//
// --kind all_gather_v gathers in place what all_gather does out of place, each rank's piece in another array of it.
// A sample is one call behind a barrier of the GPUs, so that nobody's arrival is in it, between two events. The stream
// is kept busy while a batch is enqueued. A sample's time is its slowest rank's. One JSON line a size and contender.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>

#include "kernels/collectives/auto_communicator.hpp"
#include "kernels/collectives/cuda/p2p_launch.hpp"
#include "kernels/collectives/launch.hpp"
#include "kernels/collectives/p2p_communicator.hpp"
#include "kernels/runtime/check.hpp"
#include "kernels/runtime/cuda_check.hpp"
#if WARPMETER_NCCL
#include "kernels/collectives/nccl_communicator.hpp"
#endif

namespace warpmeter::collectives {
namespace {

struct Settings {
  int ranks = 2;
  std::vector<std::int64_t> sizes;
  std::string set = "main";
  CollectiveKind kind = CollectiveKind::all_reduce;
  bool pieces = false;  ///< all_gather_v
};

struct Contender {
  std::string name;
  std::unique_ptr<Communicator> group;
  CommunicatorBuffer own_in, own_out;  ///< empty: p2p's
  void* in = nullptr;
  void* out = nullptr;
  std::vector<float> us = {};
};

constexpr int kBatch = 10;

class Bench {
 public:
  Bench(const RankContext& context, const Settings& settings)
      : context_(context), settings_(settings), stream_(context.device) {
    for (cudaEvent_t& event : events_) WM_CUDA_CHECK(cudaEventCreate(&event));
    largest_ = *std::max_element(settings.sizes.begin(), settings.sizes.end());
    barrier_ = make_p2p(context, {});
    in_ = barrier_->allocate(static_cast<std::size_t>(std::max(largest_, kHoldBytes)));
    out_ = barrier_->allocate(static_cast<std::size_t>(largest_));
    make_contenders();
  }

  void run() {
    for (const std::int64_t bytes : settings_.sizes) {
      const int batches = bytes > (std::int64_t{64} << 20) ? 1 : bytes > (std::int64_t{1} << 20) ? 2 : 4;
      for (Contender& c : contenders_) {
        check(c, bytes);
        c.us.clear();
      }
      for (int batch = 0; batch < batches; ++batch) {
        for (std::size_t i = 0; i < contenders_.size(); ++i) sample(contenders_[i], bytes);
        for (std::size_t i = contenders_.size(); i-- > 0;) sample(contenders_[i], bytes);
      }
      for (Contender& c : contenders_) report(c, bytes);
    }
  }

 private:
  static constexpr std::int64_t kHoldBytes = std::int64_t{1} << 30;

  [[nodiscard]] cudaStream_t handle() const { return static_cast<cudaStream_t>(stream_.view().handle); }

  void add(std::string name, std::unique_ptr<Communicator> group, bool own_memory = false) {
    Contender c{std::move(name), std::move(group), {}, {}, in_.data(), out_.data()};
    if (own_memory) {
      c.own_in = c.group->allocate(static_cast<std::size_t>(largest_));
      c.own_out = c.group->allocate(static_cast<std::size_t>(largest_));
      c.in = c.own_in.data();
      c.out = c.own_out.data();
    }
    contenders_.push_back(std::move(c));
  }
  void add_p2p(
      const std::string& name, const std::function<void(P2pOptions&)>& change = [](P2pOptions&) {}) {
    P2pOptions options;
    change(options);
    // Its own arrays: another group's are not known to it.
    add(name, make_p2p(context_, options), true);
  }
#if WARPMETER_NCCL
  void add_nccl(const std::string& name, NcclRegistration registration = NcclRegistration::none) {
    NcclOptions options;
    options.registration = registration;
    add(name, make_nccl(context_, options), registration != NcclRegistration::none);
  }
#endif

  void make_contenders() {
    const std::string& set = settings_.set;
    if (set == "main" || set == "nccl") add_p2p("p2p");
#if WARPMETER_NCCL
    if (set == "main" || set == "nccl" || set == "memory") add_nccl("nccl");
    if (set == "pieces") {
      add_p2p("p2p");
      add_p2p("p2p_16_blocks", [](P2pOptions& o) { o.max_blocks = 16; });
      add_p2p("p2p_32_blocks", [](P2pOptions& o) { o.max_blocks = 32; });
      add_nccl("nccl");
      NcclOptions sends;
      sends.pieces = NcclPieces::sends;
      add("nccl_sends", make_nccl(context_, sends));
    }
    if (set == "nccl") {
      add_nccl("nccl_registered", NcclRegistration::registered);
      add_nccl("nccl_symmetric", NcclRegistration::symmetric);
    }
#endif
    if (set == "main") {
      add("auto", make_auto(context_, {}), true);
      if (context_.rank == 0) std::cerr << table_of(*contenders_.back().group).text();
    }
    if (set == "blocks") {
      for (const int blocks : {16, 32, 64, 96, 128}) {
        add_p2p("bulk_" + std::to_string(blocks), [blocks](P2pOptions& o) {
          o.bulk_blocks = blocks;
          o.small_max_bytes = 0;
        });
      }
    }
    if (set == "pull") {
      for (const bool pull : {false, true}) {
        for (const int blocks : {32, 64, 128}) {
          add_p2p((pull ? "pull_" : "two_shot_") + std::to_string(blocks), [&](P2pOptions& o) {
            o.bulk_blocks = blocks;
            o.small_max_bytes = 0;
            o.pull = pull;
          });
        }
      }
    }
    if (set == "small") {
      add_p2p("small", [](P2pOptions& o) { o.small_max_bytes = std::int64_t{1} << 30; });
      add_p2p("small_32", [](P2pOptions& o) {
        o.small_max_bytes = std::int64_t{1} << 30;
        o.max_blocks = 32;
      });
      add_p2p("bulk", [](P2pOptions& o) { o.small_max_bytes = 0; });
    }
    if (set == "memory") {
      add("p2p_staged", make_p2p(context_, {}));  // the barrier's arrays, which this group does not share
      add_p2p("p2p_8_blocks", [](P2pOptions& o) { o.max_blocks = 8; });
      add_p2p("p2p_32_blocks", [](P2pOptions& o) { o.max_blocks = 32; });
    }
  }

  Work call(Contender& c, std::int64_t bytes) {
    const std::int64_t count = bytes / 4 / context_.world_size * context_.world_size;
    const std::int64_t part = count / context_.world_size;
    const auto view = [&](void* data, std::int64_t n) {
      return CollectiveBuffer(data, n, DType::fp32, context_.device);
    };
    if (settings_.pieces) {
      std::vector<CollectiveBuffer> pieces;
      for (int r = 0; r < context_.world_size; ++r) {
        // The own one where check() has put numbers.
        auto* const array = static_cast<float*>(r == context_.rank ? c.in : c.out);
        pieces.push_back(view(array + r * part, part));
      }
      return c.group->all_gather_v_async(pieces, stream_);
    }
    switch (settings_.kind) {
      case CollectiveKind::all_gather:
        return c.group->all_gather_async(view(c.in, part), view(c.out, count), stream_);
      case CollectiveKind::reduce_scatter:
        return c.group->reduce_scatter_async(view(c.in, count), view(c.out, part), ReduceOp::sum, stream_);
      case CollectiveKind::broadcast:
        return c.group->broadcast_async(view(c.in, count), view(c.out, count), 0, stream_);
      default:
        return c.group->all_reduce_async(view(c.in, count), view(c.out, count), ReduceOp::sum, stream_);
    }
  }

  /// Also what starts the contender up at this size.
  void check(Contender& c, std::int64_t bytes) {
    const std::int64_t elements = bytes / 4 / context_.world_size * context_.world_size;
    // Of large arrays the ends.
    const std::int64_t end = std::min(elements, std::int64_t{1} << 24);
    const std::int64_t begins[] = {0, elements - end};
    std::vector<float> host(static_cast<std::size_t>(end));
    WM_CUDA_CHECK(cudaMemset(c.out, 0xFF, static_cast<std::size_t>(bytes)));
    for (const std::int64_t begin : begins) {
      for (std::int64_t i = 0; i < end; ++i) {
        host[static_cast<std::size_t>(i)] = static_cast<float>((begin + i) % 1021 + context_.rank);
      }
      WM_CUDA_CHECK(
          cudaMemcpy(static_cast<float*>(c.in) + begin, host.data(), host.size() * 4, cudaMemcpyHostToDevice));
    }
    for (int i = 0; i < 3; ++i) call(c, bytes).wait();
    const int n = context_.world_size;
    if (settings_.pieces) return check_pieces(c, elements / n);
    if (settings_.kind != CollectiveKind::all_reduce) return;
    for (const std::int64_t begin : begins) {
      WM_CUDA_CHECK(
          cudaMemcpy(host.data(), static_cast<float*>(c.out) + begin, host.size() * 4, cudaMemcpyDeviceToHost));
      for (std::int64_t i = 0; i < end; ++i) {
        const auto want = static_cast<float>(n * ((begin + i) % 1021) + n * (n - 1) / 2);
        if (host[static_cast<std::size_t>(i)] == want) continue;
        throw std::runtime_error(c.name + " at " + std::to_string(bytes) + " bytes: element " +
                                 std::to_string(begin + i) + " is " +
                                 std::to_string(host[static_cast<std::size_t>(i)]) + ", not " + std::to_string(want));
      }
    }
  }

  /// The others' pieces, of `part` elements each: their ends.
  void check_pieces(const Contender& c, std::int64_t part) const {
    for (int r = 0; r < context_.world_size; ++r) {
      if (r == context_.rank) continue;
      for (const std::int64_t at : {std::int64_t{0}, part / 2, part - 1}) {
        const std::int64_t i = r * part + at;
        float got = 0;
        WM_CUDA_CHECK(cudaMemcpy(&got, static_cast<float*>(c.out) + i, 4, cudaMemcpyDeviceToHost));
        const std::int64_t end = std::int64_t{1} << 24, elements = part * context_.world_size;
        if (i >= end && i < elements - end) continue;  // no numbers were put there
        const auto want = static_cast<float>(i % 1021 + r);
        if (got != want) {
          throw std::runtime_error(c.name + ": element " + std::to_string(i) + " is " + std::to_string(got) + ", not " +
                                   std::to_string(want));
        }
      }
    }
  }

  void sample(Contender& c, std::int64_t bytes) {
    // Some 250 us in which the host gets ahead.
    p2p::launch_read(static_cast<const char*>(in_.data()), kHoldBytes, 128, stream_.view());
    Work last;
    for (int i = 0; i < kBatch; ++i) {
      (void)barrier_->barrier_async(stream_);
      WM_CUDA_CHECK(cudaEventRecord(events_[2 * i], handle()));
      last = call(c, bytes);
      WM_CUDA_CHECK(cudaEventRecord(events_[2 * i + 1], handle()));
    }
    last.wait();
    WM_CUDA_CHECK(cudaStreamSynchronize(handle()));
    std::vector<float> us(kBatch);
    for (int i = 0; i < kBatch; ++i) {
      float ms = 0;
      WM_CUDA_CHECK(cudaEventElapsedTime(&ms, events_[2 * i], events_[2 * i + 1]));
      us[static_cast<std::size_t>(i)] = 1000 * ms;
    }
    const CollectiveBuffer view(us.data(), kBatch, DType::fp32);
    context_.control->all_reduce(view, view, ReduceOp::max);
    c.us.insert(c.us.end(), us.begin(), us.end());
  }

  void report(Contender& c, std::int64_t bytes) const {
    if (context_.rank != 0) return;
    std::sort(c.us.begin(), c.us.end());
    const double median = static_cast<double>(c.us[c.us.size() / 2]);
    const double factor = bus_factor(settings_.kind, context_.world_size);
    std::ostringstream line;
    line.precision(6);
    line << R"({"kind":")" << (settings_.pieces ? "all_gather_v" : name(settings_.kind)) << R"(","bytes":)" << bytes
         << R"(,"name":")" << c.name << R"(","median_us":)" << median << R"(,"min_us":)" << c.us.front()
         << R"(,"p90_us":)" << c.us[c.us.size() * 9 / 10] << R"(,"busbw_gbps":)"
         << factor * static_cast<double>(bytes) / median / 1000 << R"(,"samples":)" << c.us.size() << "}\n";
    std::cout << line.str() << std::flush;
  }

  const RankContext& context_;
  const Settings& settings_;
  Stream stream_;
  cudaEvent_t events_[2 * kBatch] = {};
  std::int64_t largest_ = 0;
  std::unique_ptr<Communicator> barrier_;
  CommunicatorBuffer in_, out_;
  std::vector<Contender> contenders_;
};

Settings parse(int argc, char** argv) {
  Settings settings;
  std::string sizes =
      "8,1024,16384,65536,262144,524288,1048576,2097152,8388608,33554432,134217728,536870912,1073741824";
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    const std::string value = argv[i + 1];
    if (option == "--ranks") settings.ranks = std::stoi(value);
    if (option == "--sizes") sizes = value;
    if (option == "--set") settings.set = value;
    for (const CollectiveKind kind : {CollectiveKind::all_reduce, CollectiveKind::broadcast, CollectiveKind::all_gather,
                                      CollectiveKind::reduce_scatter}) {
      if (option == "--kind" && value == name(kind)) settings.kind = kind;
    }
    if (option == "--kind" && value == "all_gather_v") {
      settings.kind = CollectiveKind::all_gather;  // whose bytes and factor it has
      settings.pieces = true;
    }
  }
  std::stringstream words(sizes);
  for (std::string word; std::getline(words, word, ',');) settings.sizes.push_back(std::stoll(word));
  return settings;
}

}  // namespace
}  // namespace warpmeter::collectives

int main(int argc, char** argv) {
  using namespace warpmeter;
  using namespace warpmeter::collectives;
  const Settings settings = parse(argc, argv);
  LaunchOptions options;
  options.shm.world_size = settings.ranks;
  options.shm.threads = 1;
  options.shm.heap_bytes = 1 << 20;
  options.timeout_s = 300;
  const LaunchReport report = launch_ranks(options, [&](Communicator& control) {
    RankContext context;
    context.rank = context.local_rank = control.rank();
    context.world_size = context.local_size = control.world_size();
    context.device = Device::cuda(control.rank());
    context.control = &control;
    WM_CUDA_CHECK(cudaSetDevice(context.device.index));
    Bench(context, settings).run();
  });
  if (!report.ok()) std::cerr << report.reason << "\n";
  return report.ok() ? 0 : 1;
}
