#include "kernels/collectives/auto_communicator.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>

#include "kernels/collectives/control.hpp"
#include "kernels/collectives/cuda/p2p_launch.hpp"
#include "kernels/collectives/cuda/stream_order.hpp"
#include "kernels/collectives/p2p_communicator.hpp"
#include "kernels/runtime/check.hpp"
#include "kernels/runtime/cuda_check.hpp"
#if WARPMETER_NCCL
#include "kernels/collectives/nccl_communicator.hpp"
#endif

namespace warpmeter::collectives {
namespace {

class AutoCommunicator final : public Communicator {
 public:
  AutoCommunicator(const RankContext& context, const AutoOptions& options)
      : Communicator(context.rank, context.world_size), device_(context.device) {
    WM_CHECK(context.control != nullptr, "no way to reach the other ranks");
    auto order = std::make_shared<detail::StreamOrder>(device_);
    std::string no_peers = context.hosts > 1 ? "several hosts" : "";
    if (no_peers.empty()) {
      P2pOptions p2p;
      p2p.timeout_s = options.timeout_s;
      if (options.max_blocks > 0) p2p.max_blocks = std::min(options.max_blocks, p2p.max_blocks);
      p2p.order = order;
      try {
        p2p_ = make_p2p(context, p2p);
      } catch (const CollectiveError& error) {  // all ranks alike
        if (error.fault() != CollectiveFault::unsupported) throw;
        no_peers = error.what();
      }
    }
#if WARPMETER_NCCL
    if (context.world_size > 1 && nccl_backend().unavailable({}) == std::nullopt) {
      NcclOptions nccl;
      nccl.timeout_s = options.timeout_s;
      nccl.max_blocks = options.max_blocks;
      nccl.order = order;
      nccl_ = make_nccl(context, nccl);
    }
#endif
    if (p2p_ == nullptr && nccl_ == nullptr) {
      throw CollectiveError(CollectiveFault::unsupported, {rank()}, "auto: no NCCL here, and p2p cannot: " + no_peers);
    }
    table_ = AutoTable::always(p2p_ != nullptr ? AutoTable::Choice::p2p : AutoTable::Choice::nccl);
    if (p2p_ == nullptr || nccl_ == nullptr) return;
    if (options.table) {
      table_ = *options.table;
    } else {
      measure(*context.control, options.measure_up_to);
      measured_ = true;
    }
    // One table for all, whatever each was given.
    table_ = AutoTable::parse(broadcast_bytes(*context.control, 0, table_.text()));
  }

  [[nodiscard]] std::string_view backend() const noexcept override {
    return "auto";
  }
  [[nodiscard]] CommunicatorBuffer allocate(std::size_t bytes) override {
    return p2p_ != nullptr ? p2p_->allocate(bytes) : nccl_->allocate(bytes);
  }
  [[nodiscard]] const AutoTable& table() const noexcept {
    return table_;
  }
  [[nodiscard]] bool measured() const noexcept {
    return measured_;
  }

 protected:
  void run(const Collective& c) override {
    start(c).wait();
  }
  Work start(const Collective& c) override {
    const std::size_t bytes = c.kind == CollectiveKind::all_gather ? c.output.bytes() : c.input.bytes();
    return enqueue(*pick(table_.choice(c.kind, static_cast<std::int64_t>(bytes))), c);
  }
  void run_all_gather_v(std::span<const CollectiveBuffer> pieces, StreamView stream) override {
    start_all_gather_v(pieces, stream).wait();
  }
  /// By what the table says of all_gather, of as many bytes.
  Work start_all_gather_v(std::span<const CollectiveBuffer> pieces, StreamView stream) override {
    std::size_t bytes = 0;
    for (const CollectiveBuffer& piece : pieces) bytes += piece.bytes();
    const AutoTable::Choice choice = table_.choice(CollectiveKind::all_gather, static_cast<std::int64_t>(bytes));
    return pick(choice)->all_gather_v_async(pieces, stream);
  }

 private:
  [[nodiscard]] Communicator* pick(AutoTable::Choice choice) const {
    return choice == AutoTable::Choice::nccl ? nccl_.get() : p2p_.get();
  }
  static Work enqueue(Communicator& with, const Collective& c) {
    switch (c.kind) {
      case CollectiveKind::all_reduce:
        return with.all_reduce_async(c.input, c.output, c.op, c.stream);
      case CollectiveKind::broadcast:
        return with.broadcast_async(c.input, c.output, c.root, c.stream);
      case CollectiveKind::all_gather:
        return with.all_gather_async(c.input, c.output, c.stream);
      case CollectiveKind::reduce_scatter:
        return with.reduce_scatter_async(c.input, c.output, c.op, c.stream);
      default:
        return with.barrier_async(c.stream);
    }
  }
  void measure(Communicator& control, std::size_t up_to);

  Device device_;
  std::unique_ptr<Communicator> p2p_, nccl_;
  AutoTable table_;
  bool measured_ = false;
};

/// Times both on the stream, in turn, each sample behind a barrier of the GPUs.
class Meter {
 public:
  /// `busy`: memory that is read to keep the stream at work while a sample is enqueued, so that no launch is in it.
  Meter(Communicator& barrier, Communicator& control, Device device, const CommunicatorBuffer& busy)
      : barrier_(barrier), control_(control), busy_(busy), stream_(device) {
    WM_CUDA_CHECK(cudaEventCreate(&begin_));
    WM_CUDA_CHECK(cudaEventCreate(&end_));
  }
  ~Meter() {
    (void)cudaEventDestroy(begin_);
    (void)cudaEventDestroy(end_);
  }
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;

  [[nodiscard]] StreamView stream() const { return stream_.view(); }

  /// One call's time on this rank's stream, in us.
  template <class Call>
  float sample(const Call& call) {
    const auto stream = static_cast<cudaStream_t>(stream_.view().handle);
    constexpr std::size_t kBusyBytes = std::size_t{512} << 20;  // some 130 us
    const auto bytes = static_cast<std::int64_t>(busy_.bytes());
    for (std::size_t read = 0; read < kBusyBytes; read += busy_.bytes()) {
      p2p::launch_read(static_cast<const char*>(busy_.data()), bytes, 128, stream_.view());
    }
    barrier_.barrier_async(stream_.view());
    WM_CUDA_CHECK(cudaEventRecord(begin_, stream));
    const Work work = call();
    WM_CUDA_CHECK(cudaEventRecord(end_, stream));
    work.wait();
    WM_CUDA_CHECK(cudaEventSynchronize(end_));
    float ms = 0;
    WM_CUDA_CHECK(cudaEventElapsedTime(&ms, begin_, end_));
    return 1000 * ms;
  }
  /// A sample's time is its slowest rank's.
  [[nodiscard]] float median_of_slowest(std::vector<float>& us) {
    const CollectiveBuffer samples(us.data(), static_cast<std::int64_t>(us.size()), DType::fp32);
    control_.all_reduce(samples, samples, ReduceOp::max);
    const auto middle = us.begin() + static_cast<std::ptrdiff_t>(us.size() / 2);
    std::nth_element(us.begin(), middle, us.end());
    return *middle;
  }

 private:
  Communicator& barrier_;
  Communicator& control_;
  const CommunicatorBuffer& busy_;
  Stream stream_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

void AutoCommunicator::measure(Communicator& control, std::size_t up_to) {
  constexpr std::size_t kSmallest = 1024;
  // Small arrays are all latency; from here on the two change their ways of going about it, each at sizes of its own.
  constexpr std::size_t kNear = std::size_t{256} << 10;
  constexpr int kStartUp = 2;
  const DeviceGuard guard(device_);
  const auto ranks = static_cast<std::size_t>(world_size());
  up_to = std::max(up_to, std::size_t{16} << 20) / (ranks * 4) * (ranks * 4);
  const CommunicatorBuffer from = p2p_->allocate(up_to);
  const CommunicatorBuffer to = p2p_->allocate(up_to);
  WM_CUDA_CHECK(cudaMemset(from.data(), 0, up_to));
  WM_CUDA_CHECK(cudaDeviceSynchronize());
  Meter meter(*p2p_, control, device_, from);
  constexpr std::array<CollectiveKind, 4> kMeasured = {CollectiveKind::all_reduce, CollectiveKind::broadcast,
                                                       CollectiveKind::all_gather, CollectiveKind::reduce_scatter};
  for (const CollectiveKind kind : kMeasured) {
    std::vector<AutoTable::Span> measured;
    for (std::size_t bytes = kSmallest; bytes <= up_to; bytes *= bytes < kNear ? 16 : 4) {
      const auto count = static_cast<std::int64_t>(bytes / (ranks * 4) * ranks);
      const std::int64_t part = count / world_size();
      Collective c;
      c.kind = kind;
      c.input = {from.data(), kind == CollectiveKind::all_gather ? part : count, DType::fp32, device_};
      c.output = {to.data(), kind == CollectiveKind::reduce_scatter ? part : count, DType::fp32, device_};
      c.stream = meter.stream();
      // The two take turns, each first in every other round.
      const int samples = bytes <= (std::size_t{1} << 20) ? 15 : 5;
      std::array<std::vector<float>, 2> us;
      for (int i = 0; i < samples + kStartUp; ++i) {
        for (int turn = 0; turn < 2; ++turn) {
          const std::size_t k = (i + turn) % 2 == 0 ? 0 : 1;
          const auto choice = k == 0 ? AutoTable::Choice::p2p : AutoTable::Choice::nccl;
          const float one = meter.sample([&] { return enqueue(*pick(choice), c); });
          if (i >= kStartUp) us[k].push_back(one);
        }
      }
      const std::array<float, 2> medians = {meter.median_of_slowest(us[0]), meter.median_of_slowest(us[1])};
      AutoTable::Span span;
      span.up_to = static_cast<std::int64_t>(bytes);
      span.choice = medians[1] < medians[0] ? AutoTable::Choice::nccl : AutoTable::Choice::p2p;
      measured.push_back(span);
    }
    table_.set(kind, measured);
  }
}

/// The table in rank 0's file, on all ranks; none where there is no such file yet, or nothing in it. Throws DeviceError
/// on all of them alike.
std::optional<AutoTable> read_table(Communicator& control, const std::string& path) {
  std::string words;  // what is wrong with it, or a line's end and the table
  if (control.rank() == 0) {
    const bool writable = static_cast<bool>(std::ofstream(path, std::ios::app));
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    words.push_back('\n');
    words.append(text.str());
    try {
      (void)AutoTable::parse(words);
    } catch (const std::invalid_argument& error) {
      words = error.what();
    }
    if (!file.is_open() || (words == "\n" && !writable))
      words = file.is_open() ? "cannot be written" : "can be neither read nor written";
  }
  words = broadcast_bytes(control, 0, words);
  if (words.empty() || words.front() != '\n') throw DeviceError(path + ": " + words, false);
  if (words.size() == 1) return std::nullopt;
  return AutoTable::parse(words);
}

class AutoBackend final : public Backend {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "auto"; }
  [[nodiscard]] DeviceKind device_kind() const noexcept override { return DeviceKind::cuda; }
  [[nodiscard]] std::string_view description() const noexcept override { return "the faster of p2p and nccl, by size"; }
  [[nodiscard]] std::optional<std::string> unavailable(const GroupShape& shape) const override {
    std::optional<std::string> why = p2p_backend().unavailable(shape);
#if WARPMETER_NCCL
    if (why) why = nccl_backend().unavailable(shape);
#endif
    if (why) return "auto: " + why->substr(why->find(": ") + 2);
    return std::nullopt;
  }
  [[nodiscard]] bool prefers_own_memory() const noexcept override {
    return true;
  }
  [[nodiscard]] std::unique_ptr<Communicator> create(const RankContext& context) const override {
    AutoOptions options;
    options.timeout_s = context.options.timeout_s;
    options.max_blocks = context.options.max_blocks;
    const std::string& path = context.options.auto_table;
    if (path.empty()) return make_auto(context, options);
    options.table = read_table(*context.control, path);
    std::unique_ptr<Communicator> group = make_auto(context, options);
    if (!options.table && context.rank == 0 && dynamic_cast<const AutoCommunicator&>(*group).measured()) {
      std::ofstream file(path);
      file << "# Where auto changes between p2p and nccl, in bytes: as measured between " << context.world_size
           << " ranks.\n"
           << table_of(*group).text() << std::flush;
      if (!file) throw DeviceError(path + ": cannot be written", false);
    }
    return group;
  }
  [[nodiscard]] std::optional<double> measure_link_gbps(const RankContext& context,
                                                        Communicator& group) const override {
    return context.hosts > 1 ? std::nullopt : p2p_backend().measure_link_gbps(context, group);
  }
  [[nodiscard]] std::string library_version() const override {
#if WARPMETER_NCCL
    return nccl_backend().library_version();
#else
    return "";
#endif
  }
};

}  // namespace

std::unique_ptr<Communicator> make_auto(const RankContext& context, const AutoOptions& options) {
  return std::make_unique<AutoCommunicator>(context, options);
}

const AutoTable& table_of(const Communicator& communicator) {
  const auto* with_table = dynamic_cast<const AutoCommunicator*>(&communicator);
  WM_CHECK(with_table != nullptr, std::string(communicator.backend()) + " has no table");
  return with_table->table();
}

const Backend& auto_backend() {
  static const AutoBackend backend;
  return backend;
}

}  // namespace warpmeter::collectives
