#include "kernels/transformer/executor.hpp"

#include <array>
#include <utility>

namespace warpmeter::transformer {

std::string_view name(OperationKind kind) noexcept {
  constexpr std::array<std::string_view, 7> kNames = {"matmul",    "attention", "norm",     "elementwise",
                                                      "embedding", "loss",      "optimizer"};
  return kNames[static_cast<std::size_t>(kind)];
}

Operation Executor::product(std::string_view name, const layers::MatmulProblem& problem) const {
  ComputePath path = ComputePath::fp32;
  // The CPU widens 16-bit operands and multiplies fp32.
  if (memory_->context().device().is_cuda()) {
    if (is_16bit(problem.dtype)) path = ComputePath::half;
    if (problem.dtype == DType::tf32) path = ComputePath::tf32;
  }
  return {name, OperationKind::matmul, problem.flops(), problem.bytes(), path, layer_, problem.out_dtype};
}

void Executor::matmul(std::string_view name, const layers::MatmulProblem& problem, const void* a, const void* b,
                      void* c) {
  run(product(name, problem), [&] { matmul_->multiply(problem, a, b, c); });
}

bool Executor::fork(bool moved) {
  if (side_ == nullptr || (sink_ != nullptr && sink_->one_by_one())) return false;
  if (moved) side_->fork();
  main_moved_ = false;
  return true;
}

void Executor::matmul_aside(std::string_view name, const layers::MatmulProblem& problem, const void* a, const void* b,
                            void* c) {
  const bool moved = main_moved_;
  run(product(name, problem), [&] { (fork(moved) ? side_->matmul() : *matmul_).multiply(problem, a, b, c); });
}

Array Executor::made_anew(std::string_view what, Array used) {
  if (!side_by_side_) return used;
  Array fresh(*memory_, what, used.count(), used.dtype(), MemoryKind::activations);
  kept_.push_back(std::move(used));
  return fresh;
}

void Executor::keep(Array used) {
  if (side_by_side_) kept_.push_back(std::move(used));
}

void Executor::turn() {
  if (side_ != nullptr) side_->turn();
  kept_before_turn_ = std::exchange(kept_, {});
  main_moved_ = true;
}

void Executor::join() {
  if (side_ != nullptr) side_->join();
  kept_.clear();
  kept_before_turn_.clear();
  main_moved_ = true;
}

AttentionState Executor::attention_forward(const attention::Implementation& implementation,
                                           const attention::AttentionProblem& problem,
                                           const attention::ForwardArguments& arguments, bool for_backward) {
  AttentionState state;
  const attention::MemoryPlan plan = implementation.memory_plan(problem, for_backward);
  memory_->add_for_a_moment(MemoryKind::workspace, plan.forward_peak);
  run({"ATTENTION", OperationKind::attention, problem.forward_flops(), problem.forward_bytes(),
       implementation.compute_path(problem, attention::Pass::forward), layer_, storage_of(problem.dtype)},
      [&] {
        // As in a recording of attention alone: what is not thrown away at once stays for the backward.
        const CategoryScope category(name(for_backward ? MemoryKind::activations : MemoryKind::workspace));
        state.saved = implementation.forward(memory_->context(), problem, arguments, for_backward);
      });
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
      [&] {
        const CategoryScope category(name(MemoryKind::workspace));
        implementation.backward(memory_->context(), problem, arguments, state.saved.get());
      });
}

}  // namespace warpmeter::transformer
