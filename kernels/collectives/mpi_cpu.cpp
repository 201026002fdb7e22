#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <mpi.h>
#include <unistd.h>

#include "kernels/collectives/detail/host_communicator.hpp"
#include "kernels/collectives/mpi.hpp"
#include "kernels/runtime/check.hpp"

namespace warpmeter::collectives {
namespace {

/// The library, started at the first use and ended with the process.
class Library {
 public:
  static Library& get() {
    static Library library;
    return library;
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  [[nodiscard]] MPI_Op op(DType dtype, ReduceOp op) const {
    const int type = dtype == DType::bf16 ? 1 : dtype == DType::fp16 ? 2 : 0;
    return ops_[type][static_cast<int>(op)];
  }

 private:
  Library() {
    int provided = 0;
    // Asynchronous calls come from a thread of their own, never two at a time.
    if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS) {
      throw DeviceError("the MPI library cannot be started", false);
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    make<DType::fp32>(0);
    make<DType::bf16>(1);
    make<DType::fp16>(2);
  }
  ~Library() {
    for (auto& of_type : ops_) {
      for (MPI_Op& op : of_type) MPI_Op_free(&op);
    }
    MPI_Finalize();
  }

  // The library's own maximum and minimum say nothing of NaN, and it knows no 16-bit floats.
  template <DType kType, ReduceOp kOp>
  static void apply(void* in, void* in_out, int* count, MPI_Datatype* /*type*/) {
    detail::combine(in_out, in, *count, kType, kOp);
  }
  template <DType kType>
  void make(int type) {
    MPI_Op_create(apply<kType, ReduceOp::sum>, 1, &ops_[type][static_cast<int>(ReduceOp::sum)]);
    MPI_Op_create(apply<kType, ReduceOp::sum>, 1, &ops_[type][static_cast<int>(ReduceOp::avg)]);
    MPI_Op_create(apply<kType, ReduceOp::max>, 1, &ops_[type][static_cast<int>(ReduceOp::max)]);
    MPI_Op_create(apply<kType, ReduceOp::min>, 1, &ops_[type][static_cast<int>(ReduceOp::min)]);
  }

  MPI_Op ops_[3][4] = {};
};

class MpiCommunicator final : public detail::HostCommunicator {
 public:
  MpiCommunicator(MPI_Comm communicator, int rank, int world_size)
      : HostCommunicator(rank, world_size), communicator_(communicator) {}
  ~MpiCommunicator() override {
    stop();
    if (!broken_) MPI_Comm_free(&communicator_);
  }
  [[nodiscard]] std::string_view backend() const noexcept override { return "mpi"; }

 private:
  static constexpr std::int64_t kMost = std::int64_t{1} << 30;  ///< elements of a call: the library counts in int

  void execute(const Collective& c) override {
    switch (c.kind) {
      case CollectiveKind::all_reduce:
        return all_reduce(c);
      case CollectiveKind::broadcast:
        return broadcast(c);
      case CollectiveKind::all_gather:
        return all_gather(c);
      case CollectiveKind::reduce_scatter:
        return reduce_scatter(c);
      case CollectiveKind::barrier:
        return check(MPI_Barrier(communicator_), c);
    }
  }

  /// What stands for elements of a type, and how they are combined.
  static MPI_Datatype type_of(DType dtype) {
    if (dtype == DType::int32) return MPI_INT32_T;
    return size_of(dtype) == 2 ? MPI_UINT16_T : MPI_FLOAT;
  }
  static MPI_Op op_of(DType dtype, ReduceOp op) {
    const bool native =
        dtype == DType::int32 || (storage_of(dtype) == DType::fp32 && op != ReduceOp::max && op != ReduceOp::min);
    if (!native) return Library::get().op(storage_of(dtype), op);
    return op == ReduceOp::max ? MPI_MAX : op == ReduceOp::min ? MPI_MIN : MPI_SUM;
  }
  [[nodiscard]] static bool averages_int32(const Collective& c) {
    return c.op == ReduceOp::avg && c.input.dtype == DType::int32;
  }

  void all_reduce(const Collective& c) {
    const auto element = static_cast<std::int64_t>(size_of(c.input.dtype));
    for (std::int64_t at = 0; at < std::max<std::int64_t>(c.input.count, 1); at += kMost) {
      const auto count = static_cast<int>(std::min(kMost, c.input.count - at));
      auto* const input = static_cast<char*>(c.input.data) + at * element;
      auto* const output = static_cast<char*>(c.output.data) + at * element;
      if (averages_int32(c)) {
        std::vector<std::int64_t> sums = detail::widened(input, count);
        check(MPI_Allreduce(MPI_IN_PLACE, sums.data(), count, MPI_INT64_T, MPI_SUM, communicator_), c);
        detail::divide_and_narrow(sums, world_size(), output);
        continue;
      }
      check(MPI_Allreduce(input == output ? MPI_IN_PLACE : input, output, count, type_of(c.input.dtype),
                          op_of(c.input.dtype, c.op), communicator_),
            c);
      if (c.op == ReduceOp::avg) detail::divide(output, count, c.input.dtype, world_size());
    }
  }

  void broadcast(const Collective& c) {
    if (rank() == c.root && c.input.data != c.output.data && c.input.count > 0) {
      std::memcpy(c.output.data, c.input.data, c.input.bytes());
    }
    const auto element = static_cast<std::int64_t>(size_of(c.input.dtype));
    for (std::int64_t at = 0; at < std::max<std::int64_t>(c.output.count, 1); at += kMost) {
      const auto count = static_cast<int>(std::min(kMost, c.output.count - at));
      check(MPI_Bcast(static_cast<char*>(c.output.data) + at * element, count, type_of(c.output.dtype), c.root,
                      communicator_),
            c);
    }
  }

  void all_gather(const Collective& c) {
    const int count = fitting(c, c.input.count);
    const char* const own = static_cast<char*>(c.output.data) + static_cast<std::size_t>(rank()) * c.input.bytes();
    const bool in_place = c.input.data == own;
    check(MPI_Allgather(in_place ? MPI_IN_PLACE : c.input.data, count, type_of(c.input.dtype), c.output.data, count,
                        type_of(c.input.dtype), communicator_),
          c);
  }

  void reduce_scatter(const Collective& c) {
    const int count = fitting(c, c.output.count);
    if (averages_int32(c)) {
      const std::vector<std::int64_t> wide = detail::widened(c.input.data, c.input.count);
      std::vector<std::int64_t> sums(static_cast<std::size_t>(count));
      check(MPI_Reduce_scatter_block(wide.data(), sums.data(), count, MPI_INT64_T, MPI_SUM, communicator_), c);
      return detail::divide_and_narrow(sums, world_size(), c.output.data);
    }
    // The library's in place puts the result at the beginning of the array, not at the rank's part.
    const auto* const input = static_cast<const char*>(c.input.data);
    const auto* const output = static_cast<const char*>(c.output.data);
    const bool in_place = output >= input && output < input + c.input.bytes();
    std::vector<char> apart(in_place ? c.output.bytes() : 0);
    void* const target = in_place ? apart.data() : c.output.data;
    check(MPI_Reduce_scatter_block(c.input.data, target, count, type_of(c.input.dtype), op_of(c.input.dtype, c.op),
                                   communicator_),
          c);
    if (c.op == ReduceOp::avg) detail::divide(target, count, c.input.dtype, world_size());
    if (!apart.empty()) std::memcpy(c.output.data, apart.data(), apart.size());
  }

  int fitting(const Collective& c, std::int64_t count) const {
    if (count <= INT_MAX) return static_cast<int>(count);
    throw CollectiveError(CollectiveFault::unsupported, {rank()}, "mpi: " + describe(c) + ": too many for a rank");
  }

  void check(int code, const Collective& c) {
    if (code == MPI_SUCCESS) return;
    broken_ = true;
    char words[MPI_MAX_ERROR_STRING] = {};
    int length = 0;
    MPI_Error_string(code, words, &length);
    throw PeerDied({}, "mpi: " + describe(c) + ": " + words);
  }

  MPI_Comm communicator_;
  bool broken_ = false;
};

/// "mpirun" is in one of the folders of PATH.
bool launcher_is_there() {
  const char* const path = std::getenv("PATH");
  std::string rest = path != nullptr ? path : "";
  while (!rest.empty()) {
    const std::size_t end = rest.find(':');
    const std::string folder = rest.substr(0, end);
    if (access((folder + "/mpirun").c_str(), X_OK) == 0) return true;
    rest = end == std::string::npos ? "" : rest.substr(end + 1);
  }
  return false;
}

class MpiBackend final : public Backend {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "mpi"; }
  [[nodiscard]] DeviceKind device_kind() const noexcept override { return DeviceKind::cpu; }
  [[nodiscard]] std::string_view description() const noexcept override { return "the MPI library"; }
  [[nodiscard]] std::optional<std::string> unavailable(const GroupShape& shape) const override {
    if (shape.launched) {
      for (const char* told : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE"}) {
        if (std::getenv(told) != nullptr) return std::nullopt;
      }
      return "mpi: the ranks were not started by the MPI library's launcher: start them with mpirun, or without a "
             "launcher";
    }
    if (launcher_is_there()) return std::nullopt;
    return "mpi: there is no mpirun to start ranks with: install openmpi-bin";
  }

  [[nodiscard]] std::unique_ptr<Communicator> create(const RankContext& ranks) const override {
    const MpiWorld world = mpi_world();
    if (world.world_size != ranks.world_size || world.rank != ranks.rank) {
      throw DeviceError("mpi: the library's launcher has started " + std::to_string(world.world_size) +
                            " ranks, of which this is " + std::to_string(world.rank) + "; it should be rank " +
                            std::to_string(ranks.rank) + " of " + std::to_string(ranks.world_size) +
                            ": start the ranks with mpirun, or let this program do it",
                        false);
    }
    MPI_Comm communicator = MPI_COMM_NULL;
    if (MPI_Comm_dup(MPI_COMM_WORLD, &communicator) != MPI_SUCCESS) {
      throw DeviceError("mpi: the ranks form no group", false);
    }
    MPI_Comm_set_errhandler(communicator, MPI_ERRORS_RETURN);
    return std::make_unique<MpiCommunicator>(communicator, world.rank, world.world_size);
  }
  [[nodiscard]] std::string library_version() const override {
    char words[MPI_MAX_LIBRARY_VERSION_STRING] = {};
    int length = 0;
    if (MPI_Get_library_version(words, &length) != MPI_SUCCESS) return "";
    const std::string text(words, static_cast<std::size_t>(length));
    return text.substr(0, text.find_first_of(",\n"));  // "Open MPI v4.1.4"
  }
};

}  // namespace

const Backend& mpi_backend() {
  static const MpiBackend backend;
  return backend;
}

MpiWorld mpi_world() {
  (void)Library::get();
  MpiWorld world;
  MPI_Comm_rank(MPI_COMM_WORLD, &world.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world.world_size);
  return world;
}

std::string mpi_broadcast(const std::string& text) {
  (void)Library::get();
  int length = static_cast<int>(text.size());
  MPI_Bcast(&length, 1, MPI_INT, 0, MPI_COMM_WORLD);
  std::string all = text;
  all.resize(static_cast<std::size_t>(length));
  MPI_Bcast(all.data(), length, MPI_CHAR, 0, MPI_COMM_WORLD);
  return all;
}

}  // namespace warpmeter::collectives
