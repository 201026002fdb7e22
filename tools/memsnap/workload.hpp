#pragma once

#include <memory>
#include <string>

#include "kernels/runtime/context.hpp"
#include "tools/harness/option_table.hpp"

namespace warpmeter::memsnap {

/// Something whose memory is recorded: set up once, then run step by step. Names what it does by phases (FWD_STEP,
/// BWD_STEP, OPTIM_STEP, layers), frames and categories.
class Workload {
 public:
  virtual ~Workload() = default;
  [[nodiscard]] virtual std::string describe() const = 0;  ///< "naive fp32 batch 8 ..."
  /// Why it cannot run here; empty: it can.
  [[nodiscard]] virtual std::string unsupported() const { return ""; }
  /// Bytes allocated at once at most, by an account made without running; 0: not known.
  [[nodiscard]] virtual std::size_t predicted_peak() const { return 0; }
  /// Allocates what stays: operands, or parameters, gradients and optimizer state. Throws OutOfMemory.
  virtual void prepare(const Context& context) = 0;
  /// One step. Throws OutOfMemory.
  virtual void step(const Context& context) = 0;
};

struct WorkloadSettings {
  Device device;
  std::uint64_t seed = 0;
};

/// A kind of workload, from options. make() throws UsageError, also when the options leave more than one.
struct WorkloadKind {
  void (*add_options)(harness::OptionTable& table);
  std::unique_ptr<Workload> (*make)(const harness::OptionTable& table, const WorkloadSettings& settings);
};

/// A model of e2e_bench's options: a forward, forward and backward, or a whole training step.
extern const WorkloadKind kModelWorkload;
/// One configuration of attn_bench's options: forward and backward.
extern const WorkloadKind kAttentionWorkload;

}  // namespace warpmeter::memsnap
