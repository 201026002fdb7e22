#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "kernels/attention/implementation.hpp"
#include "kernels/layers/linear_epilogue.hpp"
#include "kernels/layers/matmul.hpp"
#include "kernels/runtime/annotate.hpp"
#include "kernels/runtime/compute_path.hpp"
#include "kernels/transformer/memory.hpp"
#include "kernels/transformer/side_lane.hpp"

namespace warpmeter::transformer {

/// What an operation mainly is: the rows that a breakdown sums by.
enum class OperationKind : std::uint8_t { matmul, attention, norm, elementwise, embedding, loss, optimizer };
[[nodiscard]] std::string_view name(OperationKind kind) noexcept;

/// One operation as it is about to run.
struct Operation {
  std::string_view name;  ///< a literal: "FFN_W2_MATMUL"
  OperationKind kind = OperationKind::elementwise;
  double flops = 0;
  double bytes = 0;  ///< least: inputs once, outputs once
  ComputePath path = ComputePath::fp32;
  std::int64_t layer = -1;     ///< -1: outside the blocks
  DType result = DType::fp32;  ///< of what it writes
};

/// The type of an operation's result; of what is handed on, where it writes several.
template <class Arguments>
[[nodiscard]] DType result_type(const Arguments& arguments) {
  if constexpr (requires {
                  arguments.gradient_dtype;
                  arguments.d_table;
                }) {
    return arguments.gradient_dtype;
  } else if constexpr (requires { arguments.weight_dtype; }) {
    return arguments.weight_dtype;
  } else if constexpr (requires {
                         arguments.dtype;
                         arguments.log_probabilities;
                         arguments.d_logits;
                       }) {
    return arguments.dtype;
  } else if constexpr (requires { arguments.dtype; }) {
    // Losses, log-probabilities and norms of gradients are fp32 whatever they read.
    constexpr bool kReads = requires {
      arguments.lse;
    }
    || requires {
      arguments.max_norm;
    }
    || requires {
      arguments.sums;
    }
    || (
           requires { arguments.out; } && requires { arguments.logits; });
    return kReads ? DType::fp32 : arguments.dtype;
  } else {
    return DType::fp32;
  }
}

/// Is told of every operation, in the order of the stream.
class OperationSink {
 public:
  virtual ~OperationSink() = default;
  /// Whether operations must follow one another in the main stream while this is told of them, as to be timed.
  [[nodiscard]] virtual bool one_by_one() const { return true; }
  virtual void begin(const Operation& operation) = 0;
  virtual void end(const Operation& operation) = 0;
};

/// What attention's forward leaves for its backward, with its place in the account.
struct AttentionState {
  std::unique_ptr<attention::Saved> saved;
  Charge charge;
};

/// Runs a model's operations: each in an NVTX range, told to the sink, accounted, and left undone in a planning memory.
///
/// Where it works side by side, what is given to the `aside` methods may run beside the main stream until the turn()
/// after the next one, or join(). What such work reads must stay as it is until then: made_anew() gives room for a
/// value that would have taken the place of one, and keep() holds on to arrays. Elsewhere those two reuse and give back
/// at once, and aside is the main stream.
class Executor {
 public:
  /// `matmul` may be null in a planning memory. `side_by_side`: that there will be a side lane, or in a planning memory
  /// would be. All are borrowed.
  Executor(Memory& memory, layers::Matmul* matmul, bool side_by_side = false)
      : memory_(&memory), matmul_(matmul), side_by_side_(side_by_side) {}

  [[nodiscard]] Memory& memory() const { return *memory_; }
  void set_sink(OperationSink* sink) { sink_ = sink; }
  void set_layer(std::int64_t layer) { layer_ = layer; }
  /// Before anything is put aside.
  void set_side(SideLane* side) { side_ = side; }

  template <class Arguments>
  void apply(std::string_view name, OperationKind kind, void (*function)(const Context&, const Arguments&),
             const Arguments& arguments) {
    run({name, kind, arguments.flops(), arguments.bytes(), ComputePath::fp32, layer_, result_type(arguments)},
        [&] { function(memory_->context(), arguments); });
  }

  /// The same for operations that need scratch, taken for as long as the operation is enqueued.
  template <class Arguments>
  void apply_with_workspace(std::string_view name, OperationKind kind,
                            void (*function)(const Context&, const Arguments&), Arguments arguments) {
    const auto bytes = static_cast<std::int64_t>(workspace_bytes(memory_->context().device(), arguments));
    const Array workspace(*memory_, {"workspace", name}, bytes, DType::uint8, MemoryKind::workspace);
    arguments.workspace = workspace.data();
    apply(name, kind, function, arguments);
  }

  void matmul(std::string_view name, const layers::MatmulProblem& problem, const void* a, const void* b, void* c);
  /// Whether the device has this product with the pass that follows it as one kernel (layers/linear_epilogue.hpp).
  /// Addresses may be null.
  template <class Arguments>
  [[nodiscard]] bool fuses(const Arguments& arguments) const {
    return fused_products_ && layers::fuses(memory_->context().device(), arguments);
  }
  template <class Arguments>
  void fused_matmul(std::string_view name, void (*function)(const Context&, const Arguments&),
                    const Arguments& arguments) {
    run({name, OperationKind::matmul, arguments.flops(), arguments.bytes(), ComputePath::half, layer_, arguments.dtype},
        [&] { function(memory_->context(), arguments); });
  }
  void set_fused_products(bool fused) { fused_products_ = fused; }

  void matmul_aside(std::string_view name, const layers::MatmulProblem& problem, const void* a, const void* b, void* c);
  /// Where work that has just been put aside is.
  [[nodiscard]] StreamView aside_stream() const {
    const bool beside = side_ != nullptr && (sink_ == nullptr || !sink_->one_by_one());
    return beside ? side_->context().stream : memory_->context().stream;
  }
  /// An array like `used`, whose value is no longer needed but by what is aside: `used` itself where nothing can be.
  [[nodiscard]] Array made_anew(std::string_view what, Array used);
  void keep(Array used);
  /// What was put aside before the last turn() is done, for the main stream's further work, and what was kept for it
  /// goes.
  void turn();
  /// Nothing is aside any more, for the main stream's further work, and what was kept goes.
  void join();

  [[nodiscard]] AttentionState attention_forward(const attention::Implementation& implementation,
                                                 const attention::AttentionProblem& problem,
                                                 const attention::ForwardArguments& arguments, bool for_backward);
  void attention_backward(const attention::Implementation& implementation, const attention::AttentionProblem& problem,
                          const attention::BackwardArguments& arguments, const AttentionState& state);

  template <class Work>
  void run(const Operation& operation, Work&& work) {
    if (sink_ != nullptr) sink_->begin(operation);
    if (!memory_->planning()) {
      const Range range(operation.name);
      main_moved_ = true;
      work();
    }
    if (sink_ != nullptr) sink_->end(operation);
  }

 private:
  Memory* memory_;
  layers::Matmul* matmul_;
  SideLane* side_ = nullptr;
  bool side_by_side_, fused_products_ = false;
  std::vector<Array> kept_, kept_before_turn_;
  bool main_moved_ = true;  ///< since the last fork
  OperationSink* sink_ = nullptr;
  std::int64_t layer_ = -1;

  /// True when work is to go aside now, which then follows all that the main stream has; `moved`: that is more than at
  /// the last fork.
  [[nodiscard]] bool fork(bool moved);
  [[nodiscard]] Operation product(std::string_view name, const layers::MatmulProblem& problem) const;
};

}  // namespace warpmeter::transformer
