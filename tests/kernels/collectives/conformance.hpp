#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/collectives/communicator.hpp"

/// What every backend must do alike, one rank's part: calls of every kind, with their results checked.
namespace warpmeter::collectives::conformance {

inline constexpr int kMostRanks = 6;
#ifdef WARPMETER_TSAN
inline constexpr std::int64_t kLargest = (std::int64_t{1} << 17) + 3;  // ThreadSanitizer takes 15 times as long
#else
inline constexpr std::int64_t kLargest = (std::int64_t{1} << 20) + 3;
#endif

/// The ranks' inputs, made once: before the ranks start, where they inherit it.
void make_data();

/// What a backend promises beyond the collectives themselves.
struct Promise {
  bool rank_order = true;  ///< the same bits wherever the arrays lie
  int roundings = 1;       ///< of a 16-bit reduction to its type
};

/// Throws std::logic_error where something is wrong.
class Rank {
 public:
  /// Arrays begin `shift` bytes past an aligned address.
  explicit Rank(Communicator& communicator, Promise promise = {}, std::size_t shift = 0);

  void all_reduce(DType dtype, ReduceOp op, std::int64_t count);
  void reduce_scatter(DType dtype, ReduceOp op, std::int64_t block);
  void all_gather(DType dtype, std::int64_t block);
  void broadcast(DType dtype, std::int64_t count, int root);
  /// Rank r's piece has counts[r] elements.
  void all_gather_v(DType dtype, const std::vector<std::int64_t>& counts);
  /// All of them with every type and operation. Of the scattered and gathered ones the whole array has at most the
  /// largest size.
  void everything(const std::vector<std::int64_t>& counts);
  /// Calls that do not wait, in flight together.
  void asynchronous();

 private:
  [[nodiscard]] int rank() const { return communicator_.rank(); }
  [[nodiscard]] int size() const { return communicator_.world_size(); }
  void each_place(const std::string& what, std::size_t input_bytes, std::size_t output_bytes, std::size_t input_at,
                  std::size_t output_at, const char* input, const std::function<void(char*, char*)>& call,
                  const std::function<void()>& check);
  void same_on_all_ranks(std::size_t bytes, const std::string& what);
  void check_reduction(DType dtype, ReduceOp op, std::int64_t begin, std::int64_t end, std::int64_t result_begin,
                       const std::string& what) const;

  Communicator& communicator_;
  Promise promise_;
  std::size_t shift_;
  std::array<CommunicatorBuffer, 2> shared_;
  std::array<std::vector<char>, 2> own_;
  std::vector<char> result_;
};

}  // namespace warpmeter::collectives::conformance
