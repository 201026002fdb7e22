#include "kernels/collectives/p2p_communicator.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>

#include "kernels/collectives/control.hpp"
#include "kernels/collectives/cuda/p2p_launch.hpp"
#include "kernels/collectives/cuda/p2p_memory_pool.hpp"
#include "kernels/collectives/cuda/p2p_session.hpp"
#include "kernels/runtime/check.hpp"
#include "kernels/runtime/cuda_check.hpp"

namespace warpmeter::collectives {
namespace {

using p2p::P2pCall;

constexpr int kSmallThreads = 256;  // more blocks, so more multiprocessors, than with 512
constexpr int kBulkBlocks = 64;

std::int64_t default_small_max(int world_size) {
  // Every rank sends its part to all others, twice over for the flags. Two H200s: 13.7 us at 1 MiB, where the bulk
  // protocol takes 16.5.
  return (std::int64_t{1} << 20) / (world_size <= 2 ? 1 : world_size <= 4 ? 4 : 8);
}

[[noreturn]] void refuse(int rank, const std::string& why) {
  throw CollectiveError(CollectiveFault::unsupported, {rank}, "p2p: " + why);
}

std::string pci_id(Device device) {
  std::array<char, 32> id = {};
  WM_CUDA_CHECK(cudaDeviceGetPCIBusId(id.data(), static_cast<int>(id.size()), device.index));
  return id.data();
}

class P2pCommunicator final : public Communicator {
 public:
  P2pCommunicator(const RankContext& context, const P2pOptions& options)
      : Communicator(context.rank, context.world_size),
        device_(context.device),
        control_(*context.control),
        options_(options),
        layout_(p2p::ArenaLayout::of(context.world_size, context.world_size <= 4 ? 32768 : 16384)),
        order_(options.order != nullptr ? options.order : std::make_shared<detail::StreamOrder>(context.device)),
        memory_(std::make_shared<p2p::SharedMemory>(*context.control, context.device)) {
    const DeviceGuard guard(device_);
    meet_the_others(context);
    session_ = std::make_shared<p2p::Session>(rank(), device_, options_.timeout_s);
    p2p::load_kernels();
    arena_ = memory_->allocate(static_cast<std::size_t>(layout_.bytes));
    WM_CUDA_CHECK(cudaMemset(arena_, 0, static_cast<std::size_t>(layout_.bytes)));
    WM_CUDA_CHECK(cudaDeviceSynchronize());
    control_.barrier();  // all arenas are clean before anyone writes to one
    session_->watch(identities_);
  }

  ~P2pCommunicator() override {
    try {
      const DeviceGuard guard(device_);
      // A group that broke, or a rank on its way out of a failure, does not wait for the others.
      if (std::uncaught_exceptions() == 0 && !session_->failed()) {
        WM_CUDA_CHECK(cudaDeviceSynchronize());
        control_.barrier();  // no kernel uses anyone's memory
        memory_->close();
      } else {
        session_->abort();
        (void)cudaDeviceSynchronize();
      }
    } catch (const std::exception&) {  // the others have left; the process gives the memory back
    }
  }

  [[nodiscard]] std::string_view backend() const noexcept override { return "p2p"; }

  [[nodiscard]] CommunicatorBuffer allocate(std::size_t bytes) override {
    char* base = memory_->allocate(bytes);
    return {std::shared_ptr<void>(base, [memory = memory_](void* p) { memory->free(static_cast<char*>(p)); }), bytes};
  }

  /// What a rank reads from its neighbour's memory while all do, in GB/s.
  [[nodiscard]] double measure_read();

 protected:
  void run(const Collective& c) override { start(c).wait(); }
  Work start(const Collective& c) override;
  void run_all_gather_v(std::span<const CollectiveBuffer> pieces, StreamView stream) override {
    start_all_gather_v(pieces, stream).wait();
  }
  Work start_all_gather_v(std::span<const CollectiveBuffer> pieces, StreamView stream) override;

 private:
  void meet_the_others(const RankContext& context);
  void check_device(const Collective& c) const;
  [[nodiscard]] P2pCall call_of(const Collective& c) const;
  [[nodiscard]] p2p::Launch plan(const Collective& c, P2pCall& call) const;
  [[nodiscard]] P2pCall call_of_pieces(std::span<const CollectiveBuffer> pieces) const;
  [[nodiscard]] int bulk_blocks() const {
    return std::min(options_.max_blocks, options_.bulk_blocks > 0 ? options_.bulk_blocks : kBulkBlocks);
  }
  template <class Enqueue>
  Work start(const std::string& what, StreamView on, const Enqueue& enqueue);

  Device device_;
  Communicator& control_;
  P2pOptions options_;
  p2p::ArenaLayout layout_;
  std::vector<detail::Identity> identities_;
  std::shared_ptr<detail::StreamOrder> order_;
  std::shared_ptr<p2p::SharedMemory> memory_;  ///< the buffers hold it too
  std::shared_ptr<p2p::Session> session_;
  char* arena_ = nullptr;
};

void P2pCommunicator::meet_the_others(const RankContext& context) {
  WM_CHECK(device_.is_cuda(), "p2p on " + warpmeter::name(device_));
  WM_CHECK(options_.max_blocks >= 1 && options_.max_blocks <= p2p::kMaxBlocks,
           "blocks: " + std::to_string(options_.max_blocks));
  WM_CHECK(options_.bulk_blocks >= 0 && options_.timeout_s > 0, "p2p's options");
  // What decides how a call is divided must be the same everywhere.
  const detail::Identity self = detail::own_identity();
  if (options_.small_max_bytes < 0) options_.small_max_bytes = default_small_max(world_size());
  const std::string shape = std::to_string(options_.max_blocks) + "/" + std::to_string(options_.bulk_blocks) + "/" +
                            std::to_string(options_.small_max_bytes) + "/" + std::to_string(options_.pull ? 1 : 0);
  const std::string gpu = pci_id(device_);
  const std::string mine = self.host + "\n" + std::to_string(self.pid) + "\n" + gpu + "\n" + shape;
  const std::vector<std::string> all = all_gather_bytes(control_, mine);
  std::vector<std::string> gpus;
  for (int r = 0; r < world_size(); ++r) {
    std::vector<std::string> parts = {""};
    for (const char ch : all[static_cast<std::size_t>(r)]) {
      if (ch == '\n') {
        parts.emplace_back();
      } else {
        parts.back() += ch;
      }
    }
    identities_.push_back({parts.at(0), std::stoi(parts.at(1))});
    gpus.push_back(parts.at(2));
    WM_CHECK(parts.at(3) == shape, "p2p's options differ: " + shape + " on rank " + std::to_string(rank()) + ", " +
                                       parts.at(3) + " on rank " + std::to_string(r));
  }
  // Every rank sees the same, so all refuse or none.
  if (world_size() > p2p::kMaxRanks) refuse(rank(), std::to_string(world_size()) + " ranks; at most 8");
  for (std::size_t a = 0; a < gpus.size(); ++a) {
    for (std::size_t b = a + 1; b < gpus.size(); ++b) {
      if (identities_[a].host != identities_[b].host) {
        refuse(rank(),
               "ranks " + std::to_string(a) + " and " + std::to_string(b) + " are on different hosts; use nccl");
      }
      if (gpus[a] == gpus[b] && !options_.share_gpus) {
        refuse(rank(),
               "ranks " + std::to_string(a) + " and " + std::to_string(b) + " are both on the GPU at " + gpus[a]);
      }
    }
  }
  std::string trouble;
  for (std::size_t r = 0; r < gpus.size() && context.world_size > 1; ++r) {
    int index = -1;
    int reaches = 1;
    if (gpus[r] == gpu || cudaDeviceGetByPCIBusId(&index, gpus[r].c_str()) != cudaSuccess) {
      (void)cudaGetLastError();  // not visible to this process: mapping its memory will tell
      continue;
    }
    WM_CUDA_CHECK(cudaDeviceCanAccessPeer(&reaches, device_.index, index));
    if (reaches == 0)
      trouble = "the GPU of rank " + std::to_string(rank()) + " does not reach that of rank " + std::to_string(r);
  }
  for (const std::string& theirs : all_gather_bytes(control_, trouble)) {
    if (!theirs.empty()) refuse(rank(), theirs + "; use nccl");
  }
}

void P2pCommunicator::check_device(const Collective& c) const {
  const bool has_stream = c.stream.device.is_cuda();
  const bool barrier = c.kind == CollectiveKind::barrier;
  if ((!has_stream || c.stream.device == device_) && (barrier || c.input.device == device_)) return;
  refuse(rank(), describe(c) + " on " + warpmeter::name(barrier ? c.stream.device : c.input.device) +
                     "; this rank's GPU is " + warpmeter::name(device_));
}

P2pCall P2pCommunicator::call_of(const Collective& c) const {
  P2pCall call = {};
  call.kind = c.kind;
  call.op = c.op;
  call.rank = rank();
  call.world_size = world_size();
  call.root = c.root;
  call.bytes = static_cast<std::int64_t>(c.kind == CollectiveKind::reduce_scatter ? c.output.bytes() : c.input.bytes());
  call.signature = p2p::signature_of(c, call.bytes);
  call.input = static_cast<char*>(c.input.data);
  call.output = static_cast<char*>(c.output.data);
  for (int r = 0; r < world_size(); ++r) {
    call.arenas[r] = r == rank() ? arena_ : memory_->of_rank(r, arena_);
  }
  call.layout = layout_;
  call.status = session_->status();
  call.timeout_ns = static_cast<std::uint64_t>(options_.timeout_s * 1e9);
  call.may_pull = options_.pull;
  call.clear_mask = p2p::kClearMask;
  return call;
}

p2p::Launch P2pCommunicator::plan(const Collective& c, P2pCall& call) const {
  p2p::Launch how;
  how.stream = c.stream;
  how.stream.device = device_;
  const std::int64_t fits = std::int64_t{options_.max_blocks} * p2p::kBlockPackets * p2p::kPacketBytes;
  how.small = call.bytes <= std::min(options_.small_max_bytes, fits) || call.bytes == 0;
  if (how.small) {
    const std::int64_t packets = std::max<std::int64_t>(1, (call.bytes + p2p::kPacketBytes - 1) / p2p::kPacketBytes);
    const std::int64_t spread = (packets + options_.max_blocks - 1) / options_.max_blocks;
    call.block_packets = std::max(spread, std::min<std::int64_t>(packets, kSmallThreads));
    how.blocks = static_cast<int>((packets + call.block_packets - 1) / call.block_packets);
    const auto threads =
        static_cast<int>((std::min<std::int64_t>(call.block_packets, p2p::kMaxThreads) + 31) / 32 * 32);
    how.threads = threads;
    return how;
  }
  for (int r = 0; r < world_size(); ++r) {
    if (r == rank()) continue;
    call.input_at[r] = memory_->seen_by(r, c.input.data, c.input.bytes());
    call.output_at[r] = memory_->seen_by(r, c.output.data, c.output.bytes());
  }
  how.blocks = bulk_blocks();
  return how;
}

/// One that goes by the bulk protocol whatever the lengths: packets know none but equal parts.
P2pCall P2pCommunicator::call_of_pieces(std::span<const CollectiveBuffer> pieces) const {
  const CollectiveBuffer& own = pieces[static_cast<std::size_t>(rank())];
  Collective gather;
  gather.kind = CollectiveKind::all_gather;
  gather.input = gather.output = own;
  P2pCall call = call_of(gather);
  call.pieces = true;
  call.signature = p2p::signature_of_pieces(pieces);
  bool shared = true;
  for (int r = 0; r < world_size(); ++r) {
    const CollectiveBuffer& piece = pieces[static_cast<std::size_t>(r)];
    call.input_at[r] = reinterpret_cast<std::uint64_t>(piece.data);
    if (r == rank()) continue;
    // Of an empty piece nobody looks at the address.
    call.output_at[r] = piece.count == 0 ? 1 : memory_->seen_by(r, piece.data, piece.bytes());
    shared = shared && call.output_at[r] != 0;
  }
  // All ranks are told the same of this one's memory, and so decide alike.
  if (!shared) std::fill(call.output_at, call.output_at + world_size(), 0);
  return call;
}

Work P2pCommunicator::start(const Collective& c) {
  check_device(c);
  return start(describe(c), c.stream, [&](StreamView stream) {
    if (world_size() == 1) {
      // Every operation on one array is that array.
      if (c.output.data != c.input.data && c.input.count > 0) {
        WM_CUDA_CHECK(cudaMemcpyAsync(c.output.data, c.input.data, c.input.bytes(), cudaMemcpyDeviceToDevice,
                                      static_cast<cudaStream_t>(stream.handle)));
      }
      return;
    }
    P2pCall call = call_of(c);
    p2p::launch(call, c.input.dtype, plan(c, call));
  });
}

Work P2pCommunicator::start_all_gather_v(std::span<const CollectiveBuffer> pieces, StreamView stream) {
  if (std::all_of(pieces.begin(), pieces.end(), [](const CollectiveBuffer& piece) { return piece.count == 0; })) {
    return barrier_async(stream);
  }
  Collective gather;  // for its place
  gather.kind = CollectiveKind::all_gather;
  gather.input = gather.output = pieces.front();
  gather.stream = stream;
  check_device(gather);
  return start(describe_all_gather_v(pieces), stream, [&](StreamView on) {
    if (world_size() == 1) return;
    p2p::Launch how;
    how.stream = on;
    how.blocks = bulk_blocks();
    p2p::launch(call_of_pieces(pieces), pieces.front().dtype, how);
  });
}

template <class Enqueue>
Work P2pCommunicator::start(const std::string& what, StreamView on, const Enqueue& enqueue) {
  session_->throw_failure(what);
  const DeviceGuard guard(device_);
  StreamView stream = on;
  stream.device = device_;
  const bool capturing = order_->begin(stream);
  enqueue(stream);
  std::shared_ptr<CUevent_st> event = order_->end(stream, capturing);
  if (event == nullptr) return Work();
  return Work(std::make_shared<p2p::P2pWork>(session_, std::move(event), "p2p " + what));
}

double P2pCommunicator::measure_read() {
  constexpr std::size_t kBytes = std::size_t{256} << 20;
  constexpr int kRepeats = 5;
  const DeviceGuard guard(device_);
  char* own = memory_->allocate(kBytes);
  WM_CUDA_CHECK(cudaMemset(own, 0, kBytes));
  const int neighbour = (rank() + 1) % world_size();
  const char* theirs = neighbour == rank() ? own : memory_->of_rank(neighbour, own);
  cudaStream_t stream = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
  WM_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  WM_CUDA_CHECK(cudaEventCreate(&begin));
  WM_CUDA_CHECK(cudaEventCreate(&end));
  WM_CUDA_CHECK(cudaDeviceSynchronize());
  const StreamView view{device_, stream};
  double best = 0;
  for (int i = 0; i < kRepeats; ++i) {
    barrier_async(view);
    WM_CUDA_CHECK(cudaEventRecord(begin, stream));
    p2p::launch_read(theirs, static_cast<std::int64_t>(kBytes), 2 * kBulkBlocks, view);
    WM_CUDA_CHECK(cudaEventRecord(end, stream));
    barrier(view);  // throws what went wrong
    float ms = 0;
    WM_CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
    best = std::max(best, static_cast<double>(kBytes) / (ms * 1e6));
  }
  (void)cudaEventDestroy(begin);
  (void)cudaEventDestroy(end);
  (void)cudaStreamDestroy(stream);
  memory_->free(own);
  // The slowest rank's: all wait for it.
  std::int32_t mbps = static_cast<std::int32_t>(best * 1000);
  control_.all_reduce({&mbps, 1, DType::int32}, {&mbps, 1, DType::int32}, ReduceOp::min);
  return mbps / 1000.0;
}

class P2pBackend final : public Backend {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "p2p"; }
  [[nodiscard]] DeviceKind device_kind() const noexcept override { return DeviceKind::cuda; }
  [[nodiscard]] std::string_view description() const noexcept override {
    return "kernels that read and write the other GPUs' memory (one host)";
  }
  [[nodiscard]] std::optional<std::string> unavailable(const GroupShape& shape) const override {
    if (cuda_device_count() == 0) return "p2p: " + cuda_unavailable_reason();
    if (shape.hosts > 1) {
      return "p2p: the ranks are on " + std::to_string(shape.hosts) +
             " hosts and do not reach each other's memory; use nccl";
    }
    if (shape.world_size > p2p::kMaxRanks) {
      return "p2p: " + std::to_string(shape.world_size) + " ranks; at most " + std::to_string(p2p::kMaxRanks);
    }
    if (!shape.launched && shape.most_on_a_host > cuda_device_count()) {
      return "p2p: " + std::to_string(shape.most_on_a_host) + " ranks, but this host has " +
             std::to_string(cuda_device_count()) + " GPU" + (cuda_device_count() == 1 ? "" : "s");
    }
    return std::nullopt;
  }
  [[nodiscard]] bool prefers_own_memory() const noexcept override { return true; }
  [[nodiscard]] std::unique_ptr<Communicator> create(const RankContext& context) const override {
    P2pOptions options;
    options.timeout_s = context.options.timeout_s;
    if (context.options.max_blocks > 0) options.max_blocks = std::min(options.max_blocks, context.options.max_blocks);
    return make_p2p(context, options);
  }
  [[nodiscard]] std::optional<double> measure_link_gbps(const RankContext& context,
                                                        Communicator& /*group*/) const override {
    if (context.world_size < 2) return std::nullopt;
    return P2pCommunicator(context, {}).measure_read();
  }
};

}  // namespace

std::unique_ptr<Communicator> make_p2p(const RankContext& context, const P2pOptions& options) {
  WM_CHECK(context.control != nullptr, "no way to tell the other ranks of memory");
  return std::make_unique<P2pCommunicator>(context, options);
}

const Backend& p2p_backend() {
  static const P2pBackend backend;
  return backend;
}

}  // namespace warpmeter::collectives
