#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/collectives/collective_error.hpp"
#include "kernels/runtime/device.hpp"
#include "kernels/runtime/dtype.hpp"
#include "kernels/runtime/stream.hpp"
#include "kernels/runtime/tensor.hpp"

namespace warpmeter::collectives {

/// How elements of the ranks are combined: every rank gets the same bits. shm does it in rank order 0, 1, 2, ...;
/// libraries have an order of their own.
/// fp32 accumulates in fp32; bf16 and fp16 accumulate in fp32 and are rounded to nearest even: once, or where a library
/// hands partial results on, at each of its steps.
/// sum of int32 wraps modulo 2^32. avg divides the sum by the number of ranks; of int32, the 64-bit sum, towards zero.
/// max and min of floats propagate NaN.
enum class ReduceOp : std::uint8_t { sum, avg, max, min };

enum class CollectiveKind : std::uint8_t { all_reduce, broadcast, all_gather, reduce_scatter, barrier };

/// The spelling that options, files and JSON share: "sum", "all_reduce", ...
[[nodiscard]] std::string_view name(ReduceOp op) noexcept;
[[nodiscard]] std::string_view name(CollectiveKind kind) noexcept;

/// busbw = bus_factor x bytes / time, as NCCL's tests define it, so that it can be held against a link's or a
/// memory's rate whatever the number of ranks n: all_reduce 2(n-1)/n; all_gather and reduce_scatter (n-1)/n;
/// broadcast 1; barrier 0. `bytes` is the array that a rank ends with (reduce_scatter: begins with): the whole one
/// for all_gather and reduce_scatter. algbw = bytes / time. With one rank the factor is 0 and busbw means nothing.
/// Source: nccl-tests, doc/PERFORMANCE.md.
[[nodiscard]] double bus_factor(CollectiveKind kind, int world_size) noexcept;

/// A dense array of `count` elements that the caller keeps alive until the collective is done. Borrowed, cheap to
/// copy. Any address will do. fp32 (tf32 is stored as such), bf16, fp16, int32.
struct CollectiveBuffer {
  void* data = nullptr;
  std::int64_t count = 0;
  DType dtype = DType::fp32;
  Device device;

  CollectiveBuffer() = default;
  CollectiveBuffer(void* address, std::int64_t elements, DType type, Device where = Device::cpu())
      : data(address), count(elements), dtype(type), device(where) {}
  CollectiveBuffer(const Tensor& tensor)  // NOLINT: a borrowed view, like string -> string_view
      : data(tensor.data()), count(tensor.elements()), dtype(tensor.dtype()), device(tensor.device()) {}

  [[nodiscard]] std::size_t bytes() const noexcept { return static_cast<std::size_t>(count) * size_of(dtype); }
};

/// One call, as a backend gets it: arguments are checked, an in-place call has input.data == output's matching part.
struct Collective {
  CollectiveKind kind = CollectiveKind::barrier;
  CollectiveBuffer input;
  CollectiveBuffer output;
  ReduceOp op = ReduceOp::sum;
  int root = 0;       ///< broadcast
  StreamView stream;  ///< CUDA: the collective begins after this stream's work so far, and the stream waits for it
};

/// "all_reduce sum of 262144 fp32 (1048576 bytes)": for messages.
[[nodiscard]] std::string describe(const Collective& collective);

/// "all_gather_v of 262144 and 0 fp32 (1048576 bytes)".
[[nodiscard]] std::string describe_all_gather_v(std::span<const CollectiveBuffer> pieces);

/// The state behind a Work; a backend derives its own.
class WorkState {
 public:
  virtual ~WorkState() = default;
  [[nodiscard]] virtual bool done() const = 0;  ///< finished, well or not
  virtual void wait() = 0;                      ///< until done; throws what went wrong
};

/// A collective under way. Copies are handles to the same one. Dropping the last handle neither cancels it nor waits.
class Work {
 public:
  Work() = default;
  explicit Work(std::shared_ptr<WorkState> state) : state_(std::move(state)) {}

  /// Without a state: done.
  [[nodiscard]] bool done() const { return state_ == nullptr || state_->done(); }
  /// Blocks the host until the collective is done on this rank. Throws CollectiveError, on every call again.
  void wait() const {
    if (state_ != nullptr) state_->wait();
  }

 private:
  std::shared_ptr<WorkState> state_;
};

/// Memory that a backend reaches faster than any other (host shared memory, memory registered with a network). Gives
/// itself back; a communicator's buffers end before it does.
class CommunicatorBuffer {
 public:
  CommunicatorBuffer() = default;
  CommunicatorBuffer(std::shared_ptr<void> memory, std::size_t bytes) : memory_(std::move(memory)), bytes_(bytes) {}

  [[nodiscard]] void* data() const noexcept { return memory_.get(); }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  std::shared_ptr<void> memory_;
  std::size_t bytes_ = 0;
};

/// A rank's end of a group of `world_size` processes. Every rank makes the same calls in the same order; they run in
/// that order, asynchronous ones too. One thread of a rank at a time.
///
/// A call returns when this rank's output is there and its input may be written again; the others may be still at
/// work. The _async form returns at once: until the Work is done the input must not be written and the output not be
/// touched. 0 elements are allowed: the ranks meet and nothing moves. In place: the buffers named below are the same
/// memory; any other overlap of input and output is refused.
///
/// Wrong arguments fail WM_CHECK before anything is sent. Broken groups throw CollectiveError.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int world_size() const noexcept { return world_size_; }
  /// "shm", ...
  [[nodiscard]] virtual std::string_view backend() const noexcept = 0;
  /// Memory on `device` that this backend is fastest with. Throws OutOfMemory.
  [[nodiscard]] virtual CommunicatorBuffer allocate(std::size_t bytes) = 0;

  /// output[i] = op over ranks of input[i]. Both of one size. In place: output = input.
  void all_reduce(const CollectiveBuffer& input, const CollectiveBuffer& output, ReduceOp op, StreamView stream = {});
  Work all_reduce_async(const CollectiveBuffer& input, const CollectiveBuffer& output, ReduceOp op,
                        StreamView stream = {});

  /// output = the root's input. Both of one size; the others' input is not read. In place: output = input.
  void broadcast(const CollectiveBuffer& input, const CollectiveBuffer& output, int root, StreamView stream = {});
  Work broadcast_async(const CollectiveBuffer& input, const CollectiveBuffer& output, int root, StreamView stream = {});

  /// output = the inputs of rank 0, 1, ... one after the other; output.count = world_size x input.count.
  /// In place: input is the rank's own part of output.
  void all_gather(const CollectiveBuffer& input, const CollectiveBuffer& output, StreamView stream = {});
  Work all_gather_async(const CollectiveBuffer& input, const CollectiveBuffer& output, StreamView stream = {});

  /// Every rank sends a piece of its own to all others: pieces[r] of every rank = rank r's pieces[r]. MPI_Allgatherv
  /// with an array for each rank, in place: pieces[r] is where rank r's piece is or goes on this rank, and
  /// pieces[rank()] is read. Pieces lie wherever they like, apart from one another, and are of any length: each as long
  /// on all ranks, all of one type on one device. Of a piece of 0 elements nothing is sent and its address does not
  /// matter; where all are empty the ranks meet.
  void all_gather_v(std::span<const CollectiveBuffer> pieces, StreamView stream = {});
  Work all_gather_v_async(std::span<const CollectiveBuffer> pieces, StreamView stream = {});

  /// output = the rank's own part of what all_reduce would give; input.count = world_size x output.count.
  /// In place: output is the rank's own part of input.
  void reduce_scatter(const CollectiveBuffer& input, const CollectiveBuffer& output, ReduceOp op,
                      StreamView stream = {});
  Work reduce_scatter_async(const CollectiveBuffer& input, const CollectiveBuffer& output, ReduceOp op,
                            StreamView stream = {});

  /// Returns when every rank has called it.
  void barrier(StreamView stream = {});
  Work barrier_async(StreamView stream = {});

 protected:
  Communicator(int rank, int world_size);

  /// Does a checked collective.
  virtual void run(const Collective& collective) = 0;
  virtual Work start(const Collective& collective) = 0;
  /// Checked pieces. Unless a backend has something better: a broadcast of each that is not empty.
  virtual void run_all_gather_v(std::span<const CollectiveBuffer> pieces, StreamView stream);
  virtual Work start_all_gather_v(std::span<const CollectiveBuffer> pieces, StreamView stream);

 private:
  void check(const Collective& collective) const;
  void check_pieces(std::span<const CollectiveBuffer> pieces) const;

  int rank_;
  int world_size_;
};

}  // namespace warpmeter::collectives
