#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/collectives/backend.hpp"
#include "tools/harness/option_table.hpp"
#include "tools/harness/settings.hpp"

namespace warpmeter::allreduce_bench {

/// Whose memory the arrays are.
enum class Buffers : std::uint8_t {
  registered,  ///< the backend's own: Communicator::allocate()
  plain,       ///< any
};
[[nodiscard]] std::string_view name(Buffers buffers) noexcept;

/// One row to be.
struct Configuration {
  const collectives::Backend* backend = nullptr;
  collectives::CollectiveKind kind = collectives::CollectiveKind::all_reduce;
  collectives::ReduceOp op = collectives::ReduceOp::sum;
  DType dtype = DType::fp32;
  int world_size = 2;
  std::uint64_t bytes = 0;  ///< as asked for; 0 for a barrier
  bool in_place = true;
  Buffers buffers = Buffers::plain;

  /// Whether `op` has a meaning.
  [[nodiscard]] bool reduces() const noexcept;
  /// Elements of the array that a rank ends with (reduce_scatter: begins with). Collectives that cut it into one part a
  /// rank have the largest multiple of the ranks that fits.
  [[nodiscard]] std::int64_t elements() const noexcept;
  [[nodiscard]] std::int64_t input_elements() const noexcept;
  [[nodiscard]] std::int64_t output_elements() const noexcept;
  /// Bytes of the ranks' arrays that one call reads and writes at the least, over all ranks.
  [[nodiscard]] double least_traffic_bytes() const noexcept;
  /// Bytes that one rank's arrays take.
  [[nodiscard]] std::size_t rank_bytes() const noexcept;
  /// "shm-cpu", "nccl-cuda".
  [[nodiscard]] std::string target() const;
  /// "1MiB".
  [[nodiscard]] std::string tensor_size() const;
};

/// "all_reduce sum of 262144 fp32 (1MiB)": for messages.
[[nodiscard]] std::string describe(const Configuration& configuration);

/// The tool's own options, presets and examples.
void add_options(harness::OptionTable& table);

/// The cross product of the options' lists, backend outermost, then world size, then what is measured, sizes innermost:
/// as the notes' table runs. `launched`: ranks that a launcher has started, 0 for none. Throws UsageError.
[[nodiscard]] std::vector<Configuration> expand(const harness::OptionTable& table, const harness::Settings& settings,
                                                int launched);

}  // namespace warpmeter::allreduce_bench
