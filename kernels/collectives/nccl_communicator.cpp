#include "kernels/collectives/nccl_communicator.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/collectives/control.hpp"
#include "kernels/collectives/cuda/nccl_group.hpp"
#include "kernels/collectives/p2p_communicator.hpp"
#include "kernels/runtime/allocator.hpp"
#include "kernels/runtime/check.hpp"
#include "kernels/runtime/cuda_check.hpp"

namespace warpmeter::collectives {
namespace {

using detail::NcclGroup;
using detail::NcclLibrary;

[[noreturn]] void refuse(int rank, const std::string& why) {
  throw CollectiveError(CollectiveFault::unsupported, {rank}, "nccl: " + why);
}

const NcclLibrary& library() {
  const NcclLibrary* nccl = detail::nccl_library();
  if (nccl == nullptr) throw DeviceError(detail::nccl_trouble(), false);
  return *nccl;
}

ncclDataType_t type_of(DType dtype) {
  switch (storage_of(dtype)) {
    case DType::bf16:
      return ncclBfloat16;
    case DType::fp16:
      return ncclFloat16;
    case DType::int32:
      return ncclInt32;
    default:
      return ncclFloat32;
  }
}

ncclRedOp_t op_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::avg:
      return ncclAvg;
    case ReduceOp::max:
      return ncclMax;
    case ReduceOp::min:
      return ncclMin;
    default:
      return ncclSum;
  }
}

class NcclWork final : public WorkState {
 public:
  NcclWork(std::shared_ptr<NcclGroup> group, std::shared_ptr<CUevent_st> event)
      : group_(std::move(group)), event_(std::move(event)) {}
  [[nodiscard]] bool done() const override { return group_->failed() || detail::is_done(event_.get()); }
  void wait() override {
    const auto begin = std::chrono::steady_clock::now();
    while (!group_->failed() && !detail::is_done(event_.get())) {
      if (std::chrono::steady_clock::now() - begin > std::chrono::microseconds(200)) {
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      }
    }
    group_->throw_failure();
  }

 private:
  std::shared_ptr<NcclGroup> group_;
  std::shared_ptr<CUevent_st> event_;
};

/// For a buffer's deleter, out of which nothing may be thrown: a group that fails gives its memory back as it ends.
template <class Function>
void give_back(NcclGroup& group, const char* what, const Function& function) noexcept {
  if (group.failed()) return;
  try {
    group.call(what, [&](ncclComm_t comm) {
      function(comm);
      return ncclSuccess;
    });
  } catch (const std::exception&) {  // the group's failure: its next call tells
  }
}

constexpr std::size_t kSymmetricPartBytes = 16;

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(const RankContext& context, const NcclOptions& options)
      : Communicator(context.rank, context.world_size),
        nccl_(library()),
        device_(context.device),
        options_(options),
        order_(options.order != nullptr ? options.order : std::make_shared<detail::StreamOrder>(context.device)) {
    WM_CHECK(device_.is_cuda(), "nccl on " + warpmeter::name(device_));
    WM_CHECK(context.control != nullptr, "no way to tell the other ranks of NCCL's id");
    if (!options_.nvls) setenv("NCCL_NVLS_ENABLE", "0", 0);
    const DeviceGuard guard(device_);
    NcclGroup::Start start;
    start.rank = rank();
    start.world_size = world_size();
    start.device = device_;
    start.timeout_s = options_.timeout_s;
    start.max_blocks = options_.max_blocks;
    meet_the_others(*context.control, start);
    group_ = std::make_shared<NcclGroup>(nccl_, start);
    WM_CUDA_CHECK(cudaMalloc(&scratch_, 4));
    WM_CUDA_CHECK(cudaMemset(scratch_, 0, 4));
  }

  ~NcclCommunicator() override {
    try {
      const DeviceGuard guard(device_);
      if (std::uncaught_exceptions() == 0 && !group_->failed()) {
        (void)cudaDeviceSynchronize();
        group_->close();
      }
      group_.reset();
      (void)cudaFree(scratch_);
    } catch (const std::exception&) {  // reported where it happened
    }
  }

  [[nodiscard]] std::string_view backend() const noexcept override { return "nccl"; }
  [[nodiscard]] CommunicatorBuffer allocate(std::size_t bytes) override;

 protected:
  void run(const Collective& c) override { start(c).wait(); }
  Work start(const Collective& c) override;
  void run_all_gather_v(std::span<const CollectiveBuffer> pieces, StreamView stream) override {
    start_all_gather_v(pieces, stream).wait();
  }
  Work start_all_gather_v(std::span<const CollectiveBuffer> pieces, StreamView stream) override;

 private:
  void meet_the_others(Communicator& control, NcclGroup::Start& start) const;
  void check_call(const Collective& c) const;
  template <class Enqueue>
  Work start(const std::string& what, StreamView on, const Enqueue& enqueue);
  ncclResult_t enqueue(const Collective& c, ncclComm_t comm, cudaStream_t stream) const;
  ncclResult_t enqueue_piece(const CollectiveBuffer& piece, int owner, ncclComm_t comm, cudaStream_t stream) const;

  const NcclLibrary& nccl_;
  Device device_;
  NcclOptions options_;
  std::shared_ptr<detail::StreamOrder> order_;
  std::shared_ptr<NcclGroup> group_;
  void* scratch_ = nullptr;  ///< one element: what barriers reduce
};

void NcclCommunicator::meet_the_others(Communicator& control, NcclGroup::Start& start) const {
  std::array<char, 32> gpu = {};
  WM_CUDA_CHECK(cudaDeviceGetPCIBusId(gpu.data(), static_cast<int>(gpu.size()), device_.index));
  const detail::Identity self = detail::own_identity();
  std::string id;
  if (rank() == 0) {
    ncclUniqueId made;
    if (nccl_.get_unique_id(&made) == ncclSuccess) id.assign(made.internal, sizeof(made.internal));
  }
  id = broadcast_bytes(control, 0, id);
  if (id.size() != sizeof(start.id.internal)) throw DeviceError("NCCL gives rank 0 no id for the group", false);
  std::memcpy(start.id.internal, id.data(), id.size());
  const std::vector<std::string> all =
      all_gather_bytes(control, std::to_string(self.pid) + " " + gpu.data() + " " + self.host);
  std::vector<std::string> places;
  for (const std::string& text : all) {
    const std::size_t after_pid = text.find(' ');
    const std::size_t after_gpu = text.find(' ', after_pid + 1);
    start.identities.push_back({text.substr(after_gpu + 1), std::stoi(text)});
    places.push_back(text.substr(after_pid + 1));
  }
  // Every rank sees the same, so all refuse or none.
  for (std::size_t a = 0; a < places.size(); ++a) {
    for (std::size_t b = a + 1; b < places.size(); ++b) {
      if (places[a] == places[b]) {
        refuse(rank(), "ranks " + std::to_string(a) + " and " + std::to_string(b) + " are both on the GPU at " +
                           places[a].substr(0, places[a].find(' ')));
      }
    }
  }
}

CommunicatorBuffer NcclCommunicator::allocate(std::size_t bytes) {
  const DeviceGuard guard(device_);
  constexpr std::size_t kGranule = 4096;  // of a window
  const std::size_t wanted = std::max(kGranule, (bytes + kGranule - 1) / kGranule * kGranule);
  void* data = nullptr;
  if (options_.registration == NcclRegistration::none) {
    const cudaError_t error = cudaMalloc(&data, wanted);
    if (error == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();
      throw OutOfMemory(bytes, free_memory_bytes(device_), properties(device_).memory_bytes);
    }
    WM_CUDA_CHECK(error);
    return {std::shared_ptr<void>(data, [](void* p) { (void)cudaFree(p); }), bytes};
  }
  if (nccl_.mem_alloc(&data, wanted) != ncclSuccess) {
    (void)cudaGetLastError();
    throw OutOfMemory(bytes, free_memory_bytes(device_), properties(device_).memory_bytes);
  }
  std::shared_ptr<void> memory(data, [nccl = &nccl_](void* p) { (void)nccl->mem_free(p); });
  if (options_.registration == NcclRegistration::registered) {
    void* handle = nullptr;
    group_->call("NCCL's registration of memory",
                 [&](ncclComm_t comm) { return nccl_.comm_register(comm, data, wanted, &handle); });
    return {std::shared_ptr<void>(data,
                                  [group = group_, memory, handle](void*) {
                                    give_back(*group, "NCCL's registration of memory", [&](ncclComm_t comm) {
                                      (void)group->nccl().comm_deregister(comm, handle);
                                    });
                                  }),
            bytes};
  }
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
  if (nccl_.window_register != nullptr) {
    ncclWindow_t window = nullptr;
    group_->call("NCCL's window", [&](ncclComm_t comm) {
      return nccl_.window_register(comm, data, wanted, &window, NCCL_WIN_COLL_SYMMETRIC);
    });
    return {std::shared_ptr<void>(data,
                                  [group = group_, memory, window](void*) {
                                    give_back(*group, "NCCL's window", [&](ncclComm_t comm) {
                                      (void)group->nccl().window_deregister(comm, window);
                                    });
                                  }),
            bytes};
  }
#endif
  refuse(rank(), "NCCL " + nccl_.version + " has no symmetric windows (2.27 has)");
}

void NcclCommunicator::check_call(const Collective& c) const {
  const bool barrier = c.kind == CollectiveKind::barrier;
  const bool on_device =
      (!c.stream.device.is_cuda() || c.stream.device == device_) && (barrier || c.input.device == device_);
  if (!on_device) {
    refuse(rank(), describe(c) + " on " + warpmeter::name(barrier ? c.stream.device : c.input.device) +
                       "; this rank's GPU is " + warpmeter::name(device_));
  }
  const std::size_t unit = barrier ? 1 : size_of(c.input.dtype);
  const auto lies = [unit](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % unit == 0; };
  if (!lies(c.input.data) || !lies(c.output.data)) {
    refuse(rank(), describe(c) + " at an address that is no multiple of " + std::to_string(unit));
  }
  // NCCL 2.28.3 leaves zeros in parts of 34 bytes.
  if (options_.registration == NcclRegistration::symmetric && c.kind == CollectiveKind::reduce_scatter &&
      c.output.bytes() % kSymmetricPartBytes != 0) {
    refuse(rank(), describe(c) + " in parts of " + std::to_string(c.output.bytes()) +
                       " bytes: with symmetric windows NCCL's results are right for multiples of " +
                       std::to_string(kSymmetricPartBytes));
  }
}

ncclResult_t NcclCommunicator::enqueue(const Collective& c, ncclComm_t comm, cudaStream_t stream) const {
  const auto count = static_cast<std::size_t>(c.input.count);
  const ncclDataType_t type = type_of(c.input.dtype);
  if (c.kind == CollectiveKind::barrier || c.output.count == 0) {
    return nccl_.all_reduce(scratch_, scratch_, 1, ncclInt32, ncclSum, comm, stream);
  }
  switch (c.kind) {
    case CollectiveKind::all_reduce:
      return nccl_.all_reduce(c.input.data, c.output.data, count, type, op_of(c.op), comm, stream);
    case CollectiveKind::broadcast:
      return nccl_.broadcast(c.input.data, c.output.data, count, type, c.root, comm, stream);
    case CollectiveKind::all_gather:
      return nccl_.all_gather(c.input.data, c.output.data, count, type, comm, stream);
    default:
      return nccl_.reduce_scatter(c.input.data, c.output.data, static_cast<std::size_t>(c.output.count), type,
                                  op_of(c.op), comm, stream);
  }
}

Work NcclCommunicator::start(const Collective& c) {
  check_call(c);
  return start("nccl " + describe(c), c.stream,
               [&](ncclComm_t comm, cudaStream_t stream) { return enqueue(c, comm, stream); });
}

/// One launch of the library's: the links are busy both ways.
Work NcclCommunicator::start_all_gather_v(std::span<const CollectiveBuffer> pieces, StreamView stream) {
  bool any = false;
  for (const CollectiveBuffer& piece : pieces) {
    Collective c;
    c.kind = CollectiveKind::broadcast;
    c.input = c.output = piece;
    c.stream = stream;
    if (piece.count > 0) check_call(c);
    any = any || piece.count > 0;
  }
  if (!any) return barrier_async(stream);
  return start("nccl " + describe_all_gather_v(pieces), stream, [&](ncclComm_t comm, cudaStream_t on) {
    ncclResult_t result = nccl_.group_start();
    if (result != ncclSuccess) return result;
    for (int r = 0; r < world_size() && result == ncclSuccess; ++r) {
      const CollectiveBuffer& piece = pieces[static_cast<std::size_t>(r)];
      if (piece.count > 0) result = enqueue_piece(piece, r, comm, on);
    }
    const ncclResult_t end = nccl_.group_end();  // whatever happened within
    return result != ncclSuccess ? result : end;
  });
}

ncclResult_t NcclCommunicator::enqueue_piece(const CollectiveBuffer& piece, int owner, ncclComm_t comm,
                                             cudaStream_t stream) const {
  const auto count = static_cast<std::size_t>(piece.count);
  const ncclDataType_t type = type_of(piece.dtype);
  if (options_.pieces == NcclPieces::broadcasts) {
    return nccl_.broadcast(piece.data, piece.data, count, type, owner, comm, stream);
  }
  if (owner != rank()) return nccl_.receive(piece.data, count, type, owner, comm, stream);
  ncclResult_t result = ncclSuccess;
  for (int r = 0; r < world_size() && result == ncclSuccess; ++r) {
    if (r != owner) result = nccl_.send(piece.data, count, type, r, comm, stream);
  }
  return result;
}

template <class Enqueue>
Work NcclCommunicator::start(const std::string& what, StreamView on, const Enqueue& enqueue) {
  group_->throw_failure();
  const DeviceGuard guard(device_);
  StreamView stream = on;
  stream.device = device_;
  const bool capturing = order_->begin(stream);
  // The watch counts from when the stream has come here.
  std::shared_ptr<CUevent_st> begin;
  if (!capturing) begin = order_->mark(stream);
  group_->call(what, [&](ncclComm_t comm) { return enqueue(comm, static_cast<cudaStream_t>(stream.handle)); });
  std::shared_ptr<CUevent_st> end = order_->end(stream, capturing);
  if (end == nullptr) return Work();
  group_->watch(std::move(begin), end, what);
  return Work(std::make_shared<NcclWork>(group_, std::move(end)));
}

class NcclBackend final : public Backend {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "nccl"; }
  [[nodiscard]] DeviceKind device_kind() const noexcept override { return DeviceKind::cuda; }
  [[nodiscard]] std::string_view description() const noexcept override { return "the NCCL library"; }
  [[nodiscard]] std::optional<std::string> unavailable(const GroupShape& shape) const override {
    if (cuda_device_count() == 0) return "nccl: " + cuda_unavailable_reason();
    if (detail::nccl_library() == nullptr) return "nccl: " + detail::nccl_trouble();
    if (!shape.launched && shape.most_on_a_host > cuda_device_count()) {
      return "nccl: " + std::to_string(shape.most_on_a_host) + " ranks, but this host has " +
             std::to_string(cuda_device_count()) + " GPU" + (cuda_device_count() == 1 ? "" : "s") +
             ", and two ranks on one GPU hang";
    }
    return std::nullopt;
  }
  [[nodiscard]] std::unique_ptr<Communicator> create(const RankContext& context) const override {
    NcclOptions options;
    options.timeout_s = context.options.timeout_s;
    options.max_blocks = context.options.max_blocks;
    return make_nccl(context, options);
  }
  [[nodiscard]] std::optional<double> measure_link_gbps(const RankContext& context,
                                                        Communicator& group) const override {
    if (context.hosts > 1) return std::nullopt;
    try {
      return p2p_backend().measure_link_gbps(context, group);
    } catch (const CollectiveError& error) {
      if (error.fault() != CollectiveFault::unsupported) throw;
      return std::nullopt;  // the GPUs do not reach each other: on all ranks alike
    }
  }
  [[nodiscard]] std::string library_version() const override {
    return detail::nccl_library() != nullptr ? detail::nccl_library()->version : "";
  }
};

}  // namespace

std::unique_ptr<Communicator> make_nccl(const RankContext& context, const NcclOptions& options) {
  return std::make_unique<NcclCommunicator>(context, options);
}

const Backend& nccl_backend() {
  static const NcclBackend backend;
  return backend;
}

}  // namespace warpmeter::collectives
