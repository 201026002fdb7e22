#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/attention/problem.hpp"
#include "kernels/runtime/compute_path.hpp"
#include "kernels/runtime/context.hpp"

namespace warpmeter::attention {

enum class Pass : std::uint8_t { forward, backward };

/// Where scores are between the products, which decides what rounding errors are to be expected (verify.hpp).
enum class ScorePrecision : std::uint8_t {
  storage,  ///< in memory in the problem's type: S and dP are rounded to it, P is kept for the backward
  fp32,     ///< in registers in fp32: only P and dS are rounded, for their products; the backward makes P from LSE
};

/// `lse` is dense fp32 (batch, num_heads, seq_len), natural log. Operands have the problem's storage type.
struct ForwardArguments {
  ConstOperand q, k, v;
  Operand o;
  float* lse = nullptr;
};

/// `o` and `lse` are the forward's results. dq, dk, dv are written whole (not accumulated into).
struct BackwardArguments {
  ConstOperand q, k, v, o, d_o;
  const float* lse = nullptr;
  Operand dq, dk, dv;
};

/// What an implementation keeps from forward to backward beside q, k, v, o and lse (naive: P). Frees it on destruction.
class Saved {
 public:
  virtual ~Saved() = default;
};

/// Allocated bytes that an implementation takes beside the operands and lse, each rounded to the allocator's 512 B.
struct MemoryPlan {
  std::size_t forward_peak = 0;   ///< most at once during forward(), `saved` included when it keeps for a backward
  std::size_t saved = 0;          ///< from the end of forward() to the end of backward()
  std::size_t backward_peak = 0;  ///< most at once during backward(), `saved` included
};

/// One way to compute attention on one kind of device. Stateless: all calls are const and thread-safe.
class Implementation {
 public:
  virtual ~Implementation() = default;

  [[nodiscard]] virtual std::string_view name() const = 0;  ///< as in --impl: "flash"
  [[nodiscard]] virtual DeviceKind device_kind() const = 0;
  [[nodiscard]] virtual std::string_view description() const = 0;  ///< one line for --list
  [[nodiscard]] virtual std::string_view dtypes() const = 0;       ///< "fp32,bf16,fp16", for --list

  /// nullopt when `problem` can be run, else the reason in a few words ("tf32 is a CUDA compute mode").
  [[nodiscard]] virtual std::optional<std::string> unsupported(const AttentionProblem& problem, Pass pass) const = 0;

  /// What would run: "flash_cpu_avx512". Valid when supported.
  [[nodiscard]] virtual std::string kernel(const AttentionProblem& problem, Pass pass) const = 0;

  /// The arithmetic of its matrix products. By default fp32 on the CPU, and by the problem's dtype on CUDA.
  [[nodiscard]] virtual ComputePath compute_path(const AttentionProblem& problem, Pass pass) const;

  /// What scores are rounded to; fp32 for all that do not keep them.
  [[nodiscard]] virtual ScorePrecision score_precision() const { return ScorePrecision::fp32; }

  /// `for_backward`: the forward keeps what its backward needs.
  [[nodiscard]] virtual MemoryPlan memory_plan(const AttentionProblem& problem, bool for_backward) const = 0;

  /// Enqueues O and LSE on the context's stream. Returns what the backward needs, null if nothing or not asked for.
  /// Throws OutOfMemory; then nothing stays allocated.
  [[nodiscard]] virtual std::unique_ptr<Saved> forward(const Context& context, const AttentionProblem& problem,
                                                       const ForwardArguments& arguments, bool for_backward) const = 0;

  /// Enqueues dQ, dK, dV. `saved` is the forward's and is not used up: the backward may be repeated.
  virtual void backward(const Context& context, const AttentionProblem& problem, const BackwardArguments& arguments,
                        const Saved* saved) const = 0;
};

}  // namespace warpmeter::attention
