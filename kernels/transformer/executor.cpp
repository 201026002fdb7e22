#include "kernels/transformer/executor.hpp"

#include <array>

namespace warpmeter::transformer {

std::string_view name(OperationKind kind) noexcept {
  constexpr std::array<std::string_view, 7> kNames = {"matmul",    "attention", "norm",     "elementwise",
                                                      "embedding", "loss",      "optimizer"};
  return kNames[static_cast<std::size_t>(kind)];
}

void Executor::matmul(std::string_view name, const layers::MatmulProblem& problem, const void* a, const void* b,
                      void* c) {
  ComputePath path = ComputePath::fp32;
  // The CPU widens 16-bit operands and multiplies fp32.
  if (memory_->context().device().is_cuda()) {
    if (is_16bit(problem.dtype)) path = ComputePath::half;
    if (problem.dtype == DType::tf32) path = ComputePath::tf32;
  }
  run({name, OperationKind::matmul, problem.flops(), problem.bytes(), path, layer_, problem.out_dtype},
      [&] { matmul_->multiply(problem, a, b, c); });
}

AttentionState Executor::attention_forward(const attention::Implementation& implementation,
                                           const attention::AttentionProblem& problem,
                                           const attention::ForwardArguments& arguments, bool for_backward) {
  AttentionState state;
  const attention::MemoryPlan plan = implementation.memory_plan(problem, for_backward);
  memory_->add_for_a_moment(MemoryKind::workspace, plan.forward_peak);
  run({"ATTENTION", OperationKind::attention, problem.forward_flops(), problem.forward_bytes(),
       implementation.compute_path(problem, attention::Pass::forward), layer_, storage_of(problem.dtype)},
      [&] { state.saved = implementation.forward(memory_->context(), problem, arguments, for_backward); });
  if (plan.saved != 0) state.charge = Charge(*memory_, MemoryKind::activations, plan.saved);
  return state;
}

void Executor::attention_backward(const attention::Implementation& implementation,
                                  const attention::AttentionProblem& problem,
                                  const attention::BackwardArguments& arguments, const AttentionState& state) {
  const attention::MemoryPlan plan = implementation.memory_plan(problem, true);
  memory_->add_for_a_moment(MemoryKind::workspace, plan.backward_peak - plan.saved);
  run({"ATTENTION_BWD", OperationKind::attention, problem.backward_flops(), problem.backward_bytes(),
       implementation.compute_path(problem, attention::Pass::backward), layer_, storage_of(problem.dtype)},
      [&] { implementation.backward(memory_->context(), problem, arguments, state.saved.get()); });
}

}  // namespace warpmeter::transformer
