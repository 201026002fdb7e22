#include "kernels/collectives/communicator.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/runtime/check.hpp"

namespace warpmeter::collectives {
namespace {

bool is_supported(DType dtype) {
  return storage_of(dtype) == DType::fp32 || is_16bit(dtype) || dtype == DType::int32;
}

std::uintptr_t begin_of(const CollectiveBuffer& buffer) {
  return reinterpret_cast<std::uintptr_t>(buffer.data);
}

bool overlap(const CollectiveBuffer& a, const CollectiveBuffer& b) {
  return begin_of(a) < begin_of(b) + b.bytes() && begin_of(b) < begin_of(a) + a.bytes();
}

void check_buffer(const CollectiveBuffer& buffer, const char* which) {
  WM_CHECK(buffer.count >= 0, std::string(which) + " of " + std::to_string(buffer.count) + " elements");
  WM_CHECK(buffer.count == 0 || buffer.data != nullptr, std::string(which) + " without memory");
  WM_CHECK(is_supported(buffer.dtype), std::string(which) + " of " + std::string(name(buffer.dtype)));
}

Collective make(CollectiveKind kind, const CollectiveBuffer& input, const CollectiveBuffer& output, StreamView stream,
                ReduceOp op = ReduceOp::sum, int root = 0) {
  Collective collective;
  collective.kind = kind;
  collective.input = input;
  collective.output = output;
  collective.op = op;
  collective.root = root;
  collective.stream = stream;
  return collective;
}

/// What stands for all_gather_v where a backend has nothing better.
std::vector<Collective> broadcasts_of(std::span<const CollectiveBuffer> pieces, StreamView stream) {
  std::vector<Collective> calls;
  for (std::size_t r = 0; r < pieces.size(); ++r) {
    if (pieces[r].count == 0) continue;
    calls.push_back(make(CollectiveKind::broadcast, pieces[r], pieces[r], stream, ReduceOp::sum, static_cast<int>(r)));
  }
  if (calls.empty()) calls.push_back(make(CollectiveKind::barrier, {}, {}, stream));
  return calls;
}

/// Several collectives, one after the other.
class Sequence final : public WorkState {
 public:
  explicit Sequence(std::vector<Work> works) : works_(std::move(works)) {}
  [[nodiscard]] bool done() const override {
    return std::all_of(works_.begin(), works_.end(), [](const Work& work) { return work.done(); });
  }
  void wait() override {
    for (const Work& work : works_) work.wait();
  }

 private:
  std::vector<Work> works_;
};

}  // namespace

std::string_view name(ReduceOp op) noexcept {
  switch (op) {
    case ReduceOp::sum:
      return "sum";
    case ReduceOp::avg:
      return "avg";
    case ReduceOp::max:
      return "max";
    case ReduceOp::min:
      return "min";
  }
  return "unknown";
}

std::string_view name(CollectiveKind kind) noexcept {
  switch (kind) {
    case CollectiveKind::all_reduce:
      return "all_reduce";
    case CollectiveKind::broadcast:
      return "broadcast";
    case CollectiveKind::all_gather:
      return "all_gather";
    case CollectiveKind::reduce_scatter:
      return "reduce_scatter";
    case CollectiveKind::barrier:
      return "barrier";
  }
  return "unknown";
}

std::string_view name(CollectiveFault fault) noexcept {
  switch (fault) {
    case CollectiveFault::timeout:
      return "timeout";
    case CollectiveFault::peer_died:
      return "peer_died";
    case CollectiveFault::mismatch:
      return "mismatch";
    case CollectiveFault::unsupported:
      return "unsupported";
  }
  return "unknown";
}

void throw_collective_error(CollectiveFault fault, std::vector<int> ranks, const std::string& what) {
  switch (fault) {
    case CollectiveFault::timeout:
      throw CollectiveTimeout(std::move(ranks), what);
    case CollectiveFault::peer_died:
      throw PeerDied(std::move(ranks), what);
    case CollectiveFault::mismatch:
      throw CollectiveMismatch(std::move(ranks), what);
    case CollectiveFault::unsupported:
      break;
  }
  throw CollectiveError(fault, std::move(ranks), what);
}

std::string name_ranks(const std::vector<int>& ranks) {
  if (ranks.empty()) return "no rank";
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

double bus_factor(CollectiveKind kind, int world_size) noexcept {
  const double n = world_size;
  switch (kind) {
    case CollectiveKind::all_reduce:
      return 2 * (n - 1) / n;
    case CollectiveKind::all_gather:
    case CollectiveKind::reduce_scatter:
      return (n - 1) / n;
    case CollectiveKind::broadcast:
      return world_size > 1 ? 1 : 0;
    case CollectiveKind::barrier:
      return 0;
  }
  return 0;
}

std::string describe(const Collective& collective) {
  std::string text(name(collective.kind));
  if (collective.kind == CollectiveKind::barrier) return text;
  if (collective.kind == CollectiveKind::all_reduce || collective.kind == CollectiveKind::reduce_scatter) {
    text.append(" ").append(name(collective.op));
  }
  if (collective.kind == CollectiveKind::broadcast) text.append(" from rank ").append(std::to_string(collective.root));
  const CollectiveBuffer& whole = collective.kind == CollectiveKind::all_gather ? collective.output : collective.input;
  text.append(" of ").append(std::to_string(whole.count)).append(" ").append(name(whole.dtype));
  return text.append(" (").append(std::to_string(whole.bytes())).append(" bytes)");
}

std::string describe_all_gather_v(std::span<const CollectiveBuffer> pieces) {
  std::string text("all_gather_v of ");
  std::size_t bytes = 0;
  for (std::size_t r = 0; r < pieces.size(); ++r) {
    if (r > 0) text.append(r + 1 == pieces.size() ? " and " : ", ");
    text.append(std::to_string(pieces[r].count));
    bytes += pieces[r].bytes();
  }
  if (!pieces.empty()) text.append(" ").append(name(pieces.front().dtype));
  return text.append(" (").append(std::to_string(bytes)).append(" bytes)");
}

Communicator::Communicator(int rank, int world_size) : rank_(rank), world_size_(world_size) {
  WM_CHECK(world_size >= 1 && rank >= 0 && rank < world_size,
           "rank " + std::to_string(rank) + " of " + std::to_string(world_size));
}

void Communicator::check(const Collective& c) const {
  if (c.kind == CollectiveKind::barrier) return;
  check_buffer(c.input, "input");
  check_buffer(c.output, "output");
  WM_CHECK(c.input.dtype == c.output.dtype,
           "input of " + std::string(name(c.input.dtype)) + ", output of " + std::string(name(c.output.dtype)));
  WM_CHECK(c.input.device == c.output.device,
           "input on " + warpmeter::name(c.input.device) + ", output on " + warpmeter::name(c.output.device));
  WM_CHECK(c.root >= 0 && c.root < world_size_, "root " + std::to_string(c.root));
  const std::int64_t in_parts = c.kind == CollectiveKind::reduce_scatter ? world_size_ : 1;
  const std::int64_t out_parts = c.kind == CollectiveKind::all_gather ? world_size_ : 1;
  WM_CHECK(c.input.count * out_parts == c.output.count * in_parts,
           std::string(name(c.kind)) + ": input of " + std::to_string(c.input.count) + ", output of " +
               std::to_string(c.output.count) + " elements, " + std::to_string(world_size_) + " ranks");
  const auto part = static_cast<std::uintptr_t>(rank_);
  const std::uintptr_t in_place_input = begin_of(c.output) + (out_parts > 1 ? part * c.input.bytes() : 0);
  const std::uintptr_t in_place_output = begin_of(c.input) + (in_parts > 1 ? part * c.output.bytes() : 0);
  WM_CHECK(!overlap(c.input, c.output) || begin_of(c.input) == in_place_input || begin_of(c.output) == in_place_output,
           std::string(name(c.kind)) + ": input and output overlap, not in place");
}

void Communicator::check_pieces(std::span<const CollectiveBuffer> pieces) const {
  WM_CHECK(pieces.size() == static_cast<std::size_t>(world_size_),
           "all_gather_v: " + std::to_string(pieces.size()) + " pieces, " + std::to_string(world_size_) + " ranks");
  for (std::size_t r = 0; r < pieces.size(); ++r) {
    const std::string which = "piece " + std::to_string(r);
    check_buffer(pieces[r], which.c_str());
    WM_CHECK(pieces[r].dtype == pieces.front().dtype && pieces[r].device == pieces.front().device,
             "all_gather_v: piece 0 of " + std::string(name(pieces.front().dtype)) + " on " +
                 warpmeter::name(pieces.front().device) + ", " + which + " of " + std::string(name(pieces[r].dtype)) +
                 " on " + warpmeter::name(pieces[r].device));
    for (std::size_t other = 0; other < r; ++other) {
      WM_CHECK(pieces[r].count == 0 || pieces[other].count == 0 || !overlap(pieces[r], pieces[other]),
               "all_gather_v: pieces " + std::to_string(other) + " and " + std::to_string(r) + " overlap");
    }
  }
}

void Communicator::run_all_gather_v(std::span<const CollectiveBuffer> pieces, StreamView stream) {
  for (const Collective& call : broadcasts_of(pieces, stream)) run(call);
}

Work Communicator::start_all_gather_v(std::span<const CollectiveBuffer> pieces, StreamView stream) {
  std::vector<Work> works;
  for (const Collective& call : broadcasts_of(pieces, stream)) works.push_back(start(call));
  if (works.size() == 1) return works.front();
  return Work(std::make_shared<Sequence>(std::move(works)));
}

void Communicator::all_reduce(const CollectiveBuffer& input, const CollectiveBuffer& output, ReduceOp op,
                              StreamView stream) {
  const Collective c = make(CollectiveKind::all_reduce, input, output, stream, op);
  check(c);
  run(c);
}

Work Communicator::all_reduce_async(const CollectiveBuffer& input, const CollectiveBuffer& output, ReduceOp op,
                                    StreamView stream) {
  const Collective c = make(CollectiveKind::all_reduce, input, output, stream, op);
  check(c);
  return start(c);
}

void Communicator::broadcast(const CollectiveBuffer& input, const CollectiveBuffer& output, int root,
                             StreamView stream) {
  const Collective c = make(CollectiveKind::broadcast, input, output, stream, ReduceOp::sum, root);
  check(c);
  run(c);
}

Work Communicator::broadcast_async(const CollectiveBuffer& input, const CollectiveBuffer& output, int root,
                                   StreamView stream) {
  const Collective c = make(CollectiveKind::broadcast, input, output, stream, ReduceOp::sum, root);
  check(c);
  return start(c);
}

void Communicator::all_gather(const CollectiveBuffer& input, const CollectiveBuffer& output, StreamView stream) {
  const Collective c = make(CollectiveKind::all_gather, input, output, stream);
  check(c);
  run(c);
}

Work Communicator::all_gather_async(const CollectiveBuffer& input, const CollectiveBuffer& output, StreamView stream) {
  const Collective c = make(CollectiveKind::all_gather, input, output, stream);
  check(c);
  return start(c);
}

void Communicator::all_gather_v(std::span<const CollectiveBuffer> pieces, StreamView stream) {
  check_pieces(pieces);
  run_all_gather_v(pieces, stream);
}

Work Communicator::all_gather_v_async(std::span<const CollectiveBuffer> pieces, StreamView stream) {
  check_pieces(pieces);
  return start_all_gather_v(pieces, stream);
}

void Communicator::reduce_scatter(const CollectiveBuffer& input, const CollectiveBuffer& output, ReduceOp op,
                                  StreamView stream) {
  const Collective c = make(CollectiveKind::reduce_scatter, input, output, stream, op);
  check(c);
  run(c);
}

Work Communicator::reduce_scatter_async(const CollectiveBuffer& input, const CollectiveBuffer& output, ReduceOp op,
                                        StreamView stream) {
  const Collective c = make(CollectiveKind::reduce_scatter, input, output, stream, op);
  check(c);
  return start(c);
}

void Communicator::barrier(StreamView stream) {
  run(make(CollectiveKind::barrier, {}, {}, stream));
}

Work Communicator::barrier_async(StreamView stream) {
  return start(make(CollectiveKind::barrier, {}, {}, stream));
}

}  // namespace warpmeter::collectives
