#include "tests/kernels/collectives/conformance.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include "tests/kernels/collectives/ranks.hpp"
#include "tests/kernels/collectives/values.hpp"

namespace warpmeter::collectives::conformance {
namespace {

using ranks::require;

constexpr DType kTypes[] = {DType::fp32, DType::bf16, DType::fp16, DType::int32};
constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::avg, ReduceOp::max, ReduceOp::min};
constexpr std::size_t kSlack = 64;

/// Rank r's input: the first elements of these. Made once, before the ranks start, which inherit it.
const char* data_of(DType dtype, int rank) {
  static std::map<std::pair<DType, int>, std::vector<char>> made;
  std::vector<char>& data = made[{dtype, rank}];
  if (data.empty()) {
    data.resize(static_cast<std::size_t>(kLargest) * size_of(dtype));
    for (std::int64_t i = 0; i < kLargest; ++i) {
      values::write_random(dtype, data.data(), i, static_cast<std::uint64_t>(rank));
    }
  }
  return data.data();
}

std::uint64_t checksum(const char* data, std::size_t bytes) {
  std::uint64_t sum = 0xCBF29CE484222325ULL;
  for (; bytes >= 8; bytes -= 8, data += 8) {
    std::uint64_t word;
    std::memcpy(&word, data, 8);
    sum = (sum ^ word) * 0x100000001B3ULL;
  }
  for (; bytes > 0; --bytes, ++data) sum = (sum ^ static_cast<unsigned char>(*data)) * 0x100000001B3ULL;
  return sum;
}

std::string text(const char* kind, DType dtype, std::int64_t count) {
  return std::string(kind) + " of " + std::to_string(count) + " " + std::string(name(dtype));
}

}  // namespace

void make_data() {
  for (const DType dtype : kTypes) {
    for (int rank = 0; rank < kMostRanks; ++rank) (void)data_of(dtype, rank);
  }
}

Rank::Rank(Communicator& communicator, Promise promise, std::size_t shift)
    : communicator_(communicator), promise_(promise), shift_(shift) {
  const std::size_t bytes = static_cast<std::size_t>(kLargest) * 4 + kSlack * 8;
  for (CommunicatorBuffer& buffer : shared_) buffer = communicator.allocate(bytes);
  for (std::vector<char>& buffer : own_) buffer.resize(bytes);
}

void Rank::all_reduce(DType dtype, ReduceOp op, std::int64_t count) {
  const std::size_t bytes = static_cast<std::size_t>(count) * size_of(dtype);
  const std::string what = text("all_reduce", dtype, count) + " " + std::string(name(op));
  // Equal everywhere: a rank checks its share.
  each_place(
      what, bytes, bytes, 0, 0, data_of(dtype, rank()),
      [&](char* in, char* out) {
        communicator_.all_reduce({in, count, dtype}, {out, count, dtype}, op);
      },
      [&] {
        same_on_all_ranks(bytes, what);
        check_reduction(dtype, op, count * rank() / size(), count * (rank() + 1) / size(), 0, what);
      });
}

void Rank::reduce_scatter(DType dtype, ReduceOp op, std::int64_t block) {
  const std::size_t bytes = static_cast<std::size_t>(block) * size_of(dtype);
  const std::int64_t count = block * size();
  const std::string what = text("reduce_scatter", dtype, count) + " " + std::string(name(op));
  each_place(
      what, bytes * static_cast<std::size_t>(size()), bytes, 0, bytes * static_cast<std::size_t>(rank()),
      data_of(dtype, rank()),
      [&](char* in, char* out) {
        communicator_.reduce_scatter({in, count, dtype}, {out, block, dtype}, op);
      },
      [&] { check_reduction(dtype, op, block * rank(), block * (rank() + 1), block * rank(), what); });
}

void Rank::all_gather(DType dtype, std::int64_t block) {
  const std::size_t bytes = static_cast<std::size_t>(block) * size_of(dtype);
  const std::int64_t count = block * size();
  const std::string what = text("all_gather", dtype, count);
  each_place(
      what, bytes, bytes * static_cast<std::size_t>(size()), bytes * static_cast<std::size_t>(rank()), 0,
      data_of(dtype, rank()),
      [&](char* in, char* out) {
        communicator_.all_gather({in, block, dtype}, {out, count, dtype});
      },
      [&] {
        for (int r = 0; r < size(); ++r) {
          const char* const part = result_.data() + static_cast<std::size_t>(r) * bytes;
          require(bytes == 0 || std::memcmp(part, data_of(dtype, r), bytes) == 0,
                  what + ": part of rank " + std::to_string(r));
        }
      });
}

void Rank::broadcast(DType dtype, std::int64_t count, int root) {
  const std::size_t bytes = static_cast<std::size_t>(count) * size_of(dtype);
  const std::string what = text("broadcast", dtype, count) + " from " + std::to_string(root);
  each_place(
      what, bytes, bytes, 0, 0, data_of(dtype, rank()),
      [&](char* in, char* out) {
        communicator_.broadcast({in, count, dtype}, {out, count, dtype}, root);
      },
      [&] { require(bytes == 0 || std::memcmp(result_.data(), data_of(dtype, root), bytes) == 0, what); });
}

void Rank::all_gather_v(DType dtype, const std::vector<std::int64_t>& counts) {
  // Pieces in both arrays, in an order of each rank's own, with a gap before each.
  constexpr std::int64_t kGap = 24;
  const auto element = static_cast<std::int64_t>(size_of(dtype));
  const std::string what = text("all_gather_v", dtype, counts.front());
  for (const bool asynchronous : {false, true}) {
    for (const int memory : {0, 1, 2}) {
      const bool shared = memory == 1 || (memory == 2 && rank() == 0);
      std::array<char*, 2> arrays;
      std::array<std::int64_t, 2> ends = {kGap, kGap};
      for (std::size_t i = 0; i < 2; ++i) {
        arrays[i] = (shared ? static_cast<char*>(shared_[i].data()) : own_[i].data()) + shift_;
      }
      std::vector<CollectiveBuffer> pieces(counts.size());
      for (int step = 0; step < size(); ++step) {
        const int r = (rank() + 2 * size() - step) % size();
        const std::size_t i = static_cast<std::size_t>(r + rank()) % 2;
        const std::int64_t count = counts[static_cast<std::size_t>(r)];
        char* const place = arrays[i] + ends[i];
        pieces[static_cast<std::size_t>(r)] = {count > 0 ? place : nullptr, count, dtype};
        std::memset(place - kGap, 0x5A, static_cast<std::size_t>(count * element + 2 * kGap));
        if (r == rank() && count > 0) std::memcpy(place, data_of(dtype, r), static_cast<std::size_t>(count * element));
        ends[i] += count * element + kGap;
      }
      if (asynchronous) {
        communicator_.all_gather_v_async(pieces).wait();
      } else {
        communicator_.all_gather_v(pieces);
      }
      const std::string where = what + ", memory " + std::to_string(memory) + ", rank " + std::to_string(rank());
      for (int r = 0; r < size(); ++r) {
        const CollectiveBuffer& piece = pieces[static_cast<std::size_t>(r)];
        if (piece.count == 0) continue;
        const auto* data = static_cast<const char*>(piece.data);
        require(std::memcmp(data, data_of(dtype, r), piece.bytes()) == 0, where + ": piece of " + std::to_string(r));
        for (const char* side : {data - kGap, data + piece.bytes()}) {
          require(std::all_of(side, side + kGap, [](char c) { return c == 0x5A; }),
                  where + ": written beside the piece of " + std::to_string(r));
        }
      }
    }
  }
}

void Rank::everything(const std::vector<std::int64_t>& counts) {
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
      for (int r = 0; r < size(); ++r) pieces.push_back(r == 1 ? 0 : block / (1 + r % 3) + r);
      all_gather_v(dtype, pieces);
    }
  }
}

void Rank::asynchronous() {
  constexpr int kCalls = 40;
  std::vector<std::vector<std::int32_t>> buffers;
  std::vector<Work> works;
  for (int i = 0; i < kCalls; ++i) buffers.emplace_back(static_cast<std::size_t>(i * i * 11 + 1), rank());
  for (auto& buffer : buffers) {
    const CollectiveBuffer view(buffer.data(), static_cast<std::int64_t>(buffer.size()), DType::int32);
    works.push_back(communicator_.all_reduce_async(view, view, ReduceOp::sum));
  }
  const std::int32_t sum = size() * (size() - 1) / 2;
  for (int i = kCalls - 1; i >= 0; --i) {
    const auto& buffer = buffers[static_cast<std::size_t>(i)];
    works[static_cast<std::size_t>(i)].wait();
    require(std::all_of(buffer.begin(), buffer.end(), [&](std::int32_t v) { return v == sum; }),
            "call " + std::to_string(i));
  }
  communicator_.barrier_async().wait();
}

/// Runs the call out of place and in place, in the process's own memory and in the communicator's, and where rank 0
/// differs from the others; checks the first result and wants the others to have its bits, where that is promised, or
/// checks them too. In place the input lies `input_at` bytes into the one array or the output `output_at`.
void Rank::each_place(const std::string& what, std::size_t input_bytes, std::size_t output_bytes, std::size_t input_at,
                      std::size_t output_at, const char* input, const std::function<void(char*, char*)>& call,
                      const std::function<void()>& check) {
  bool first = true;
  for (const int memory : {0, 1, 2}) {
    if (memory > 0 && !promise_.rank_order) break;  // its own memory is like any other
    const bool shared = memory == 1 || (memory == 2 && rank() == 0);
    for (const bool in_place : {false, true}) {
      char* one = (shared ? static_cast<char*>(shared_[0].data()) : own_[0].data()) + shift_;
      char* other = (shared ? static_cast<char*>(shared_[1].data()) : own_[1].data()) + shift_;
      char* in = one;
      char* out = other;
      if (in_place) {
        in = one + input_at;
        out = one + output_at;
      }
      const std::size_t whole = std::max(input_bytes + input_at, output_bytes + output_at);
      std::memset(one, 0xFF, whole + 1);
      std::memset(other, 0xFF, output_bytes + 1);
      if (input_bytes > 0) std::memcpy(in, input, input_bytes);
      call(in, out);
      const std::string where = what + (in_place ? ", in place" : ", out of place") + ", memory " +
                                std::to_string(memory) + ", rank " + std::to_string(rank());
      require((in_place ? one[whole] : other[output_bytes]) == '\xFF', where + ": written past the end");
      if (!in_place && input_bytes > 0) require(std::memcmp(in, input, input_bytes) == 0, where + ": input changed");
      if (first || !promise_.rank_order) {
        result_.assign(out, out + output_bytes);
        check();
      } else {
        require(output_bytes == 0 || std::memcmp(out, result_.data(), output_bytes) == 0,
                where + ": not the bits of the first");
      }
      first = false;
    }
  }
}

void Rank::same_on_all_ranks(std::size_t bytes, const std::string& what) {
  std::uint64_t mine = checksum(result_.data(), bytes);
  std::vector<std::uint64_t> all(static_cast<std::size_t>(size()));
  communicator_.all_gather({&mine, 2, DType::int32}, {all.data(), 2 * size(), DType::int32});
  for (const std::uint64_t other : all) require(other == mine, what + ": not the same bits on all ranks");
}

void Rank::check_reduction(DType dtype, ReduceOp op, std::int64_t begin, std::int64_t end, std::int64_t result_begin,
                           const std::string& what) const {
  std::vector<const char*> inputs;
  for (int r = 0; r < size(); ++r) inputs.push_back(data_of(dtype, r));
  std::vector<double> elements(inputs.size());
  for (std::int64_t i = begin; i < end; ++i) {
    for (std::size_t r = 0; r < inputs.size(); ++r) elements[r] = values::read(dtype, inputs[r], i);
    const values::Expected want = values::expected(dtype, op, elements, promise_.roundings);
    const double got = values::read(dtype, result_.data(), i - result_begin);
    if (std::fabs(got - want.value) <= want.tolerance) continue;  // not so for a NaN
    require(false, what + ": element " + std::to_string(i) + " is " + std::to_string(got) + ", not " +
                       std::to_string(want.value));
  }
}

}  // namespace warpmeter::collectives::conformance
