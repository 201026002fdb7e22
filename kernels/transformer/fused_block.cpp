#include "kernels/layers/linear_epilogue.hpp"
#include "kernels/layers/rmsnorm.hpp"
#include "kernels/layers/rope.hpp"
#include "kernels/layers/swiglu.hpp"
#include "kernels/transformer/block.hpp"

namespace warpmeter::transformer {

namespace {

using attention::ConstOperand;
using attention::Operand;
using layers::linear_forward;
using layers::linear_input_gradient;

/// The third part `index` (q, k, v) of a packed array.
Operand part(const BlockContext& c, const Array& qkv, std::int64_t index) {
  const std::int64_t width = c.config.d_model, stride = 3 * width;
  return {qkv.at(index * width), c.context * stride, c.config.head_dim(), stride};
}
Operand heads_of(const BlockContext& c, const Array& dense) {
  const std::int64_t width = c.config.d_model;
  return {dense.data(), c.context * width, c.config.head_dim(), width};
}

void rotate(Executor& executor, const BlockContext& c, const Array& qkv, bool inverse) {
  const std::int64_t width = c.config.d_model;
  layers::RopeArguments arguments{.rows = c.rows(),
                                  .seq_len = c.context,
                                  .heads = c.config.heads,
                                  .head_dim = c.config.head_dim(),
                                  .dtype = c.precision.activation,
                                  .inverse = inverse,
                                  .table = c.rope_table};
  arguments.q_in = arguments.q_out = qkv.data();
  arguments.k_in = arguments.k_out = qkv.at(width);
  arguments.in_stride = arguments.out_stride = 3 * width;
  executor.apply(inverse ? "ROPE_BWD" : "ROPE", OperationKind::elementwise, layers::rope, arguments);
}

class FusedBlock final : public Block {
 public:
  void forward(Executor& executor, const BlockContext& c, const LayerPlaces& places, ResidualStream& stream, Keep keep,
               BlockState& state, bool only_for_backward) const override {
    Memory& memory = executor.memory();
    const std::int64_t rows = c.rows(), width = c.config.d_model, inner = c.config.d_ff;
    const DType type = c.precision.activation, compute = c.precision.compute;
    const auto array = [&](const ArrayName& name, std::int64_t count) {
      return Array(memory, name, count, type, MemoryKind::activations);
    };
    const bool all = keep == Keep::everything;

    NormedResidual first = norm_stream(executor, c, "NORM1", c.weight(places.norm1), stream);
    Array qkv = array({"q, k, v", "QKV_MATMUL"}, rows * 3 * width);
    const layers::RopeLinear turned{.rows = rows,
                                    .seq_len = c.context,
                                    .heads = c.config.heads,
                                    .head_dim = c.config.head_dim(),
                                    .dtype = type,
                                    .table = c.rope_table,
                                    .x = first.normed.data(),
                                    .weight = c.weight(places.wq),
                                    .qkv = qkv.data()};
    const bool turns = executor.fuses(turned);
    if (turns) {
      executor.fused_matmul("QKV_ROPE_MATMUL", layers::rope_linear, turned);
    } else {
      executor.matmul("QKV_MATMUL", linear_forward(rows, width, 3 * width, compute, type), first.normed.data(),
                      c.weight(places.wq), qkv.data());
    }
    if (!all) first.normed.reset();
    if (!turns) rotate(executor, c, qkv, false);
    Array attended = array({"attention output", "ATTENTION"}, rows * width);
    Array lse(memory, {"log-sum-exp", "ATTENTION"}, rows * c.config.heads, DType::fp32, MemoryKind::activations);
    const attention::ForwardArguments operands{as_const(part(c, qkv, 0)), as_const(part(c, qkv, 1)),
                                               as_const(part(c, qkv, 2)), heads_of(c, attended), lse.as<float>()};
    AttentionState attention = executor.attention_forward(*c.attention, c.attention_problem(), operands, all);
    if (!all) {
      qkv.reset();
      lse.reset();
    }
    stream.current = array({"projected attention", "OUTPUT_MATMUL"}, rows * width);
    executor.matmul("OUTPUT_MATMUL", linear_forward(rows, width, width, compute, type), attended.data(),
                    c.weight(places.wo), stream.current.data());
    if (!all) attended.reset();
    stream.has_base = true;
    stream.base = first.residual.data();
    NormedResidual second = norm_stream(executor, c, "NORM2", c.weight(places.norm2), stream);
    if (keep == Keep::nothing) {
      first.residual.reset();
    } else {
      state.input = std::move(first.residual);
    }

    layers::SwigluLinear gated{.rows = rows, .in = width, .width = inner, .dtype = type};
    const bool gates = executor.fuses(gated);
    Array gate_up, hidden;
    // A backward wants gate and up, and nothing else of this does.
    if (!gates || all) gate_up = array({"gate, up", "FFN_W13_MATMUL"}, rows * 2 * inner);
    if (gates) {
      if (!only_for_backward) hidden = array({"hidden", "FFN_W13_SWIGLU_MATMUL"}, rows * inner);
      gated.x = second.normed.data();
      gated.weights = c.weight(places.w1);
      gated.gate_up = gate_up.data();
      gated.out = hidden.data();
      executor.fused_matmul("FFN_W13_SWIGLU_MATMUL", layers::swiglu_linear, gated);
    } else {
      executor.matmul("FFN_W13_MATMUL", linear_forward(rows, width, 2 * inner, compute, type), second.normed.data(),
                      c.weight(places.w1), gate_up.data());
    }
    if (!all) second.normed.reset();
    if (!only_for_backward) {
      if (!gates) {
        hidden = array({"hidden", "SWIGLU"}, rows * inner);
        executor.apply("SWIGLU", OperationKind::elementwise, layers::swiglu_forward,
                       layers::SwigluForward{.rows = rows,
                                             .width = inner,
                                             .dtype = type,
                                             .gate = gate_up.data(),
                                             .up = gate_up.at(inner),
                                             .in_stride = 2 * inner,
                                             .out = hidden.data()});
      }
      if (!all) gate_up.reset();
      stream.current = array({"block output", "FFN_W2_MATMUL"}, rows * width);
      executor.matmul("FFN_W2_MATMUL", linear_forward(rows, inner, width, compute, type), hidden.data(),
                      c.weight(places.w2), stream.current.data());
      hidden.reset();
      stream.has_base = true;
      stream.base = second.residual.data();
    }
    if (all) {
      state.inv_rms1 = std::move(first.inv_rms);
      state.normed1 = std::move(first.normed);
      state.qkv = std::move(qkv);
      state.lse = std::move(lse);
      state.attended = std::move(attended);
      state.attention = std::move(attention);
      state.middle = std::move(second.residual);
      state.inv_rms2 = std::move(second.inv_rms);
      state.normed2 = std::move(second.normed);
      state.gate_up = std::move(gate_up);
    } else {
      stream.base_owner = std::move(second.residual);
    }
  }

  void backward(Executor& executor, const BlockContext& c, const LayerPlaces& places, Array& gradient,
                BlockState& state) const override {
    Memory& memory = executor.memory();
    const std::int64_t rows = c.rows(), width = c.config.d_model, inner = c.config.d_ff;
    const DType type = c.precision.activation, compute = c.precision.compute;
    const auto array = [&](const ArrayName& name, std::int64_t count) {
      return Array(memory, name, count, type, MemoryKind::activations);
    };

    {
      // The gradient of SwiGLU's output; then, in its place, that output again.
      Array hidden = array({"d hidden, hidden", "FFN_W2_BWD_INPUT_MATMUL"}, rows * inner);
      executor.matmul("FFN_W2_BWD_INPUT_MATMUL", linear_input_gradient(rows, inner, width, compute, type),
                      gradient.data(), c.weight(places.w2), hidden.data());
      executor.apply("SWIGLU_BWD", OperationKind::elementwise, layers::swiglu_backward,
                     layers::SwigluBackward{.rows = rows,
                                            .width = inner,
                                            .dtype = type,
                                            .gate = state.gate_up.data(),
                                            .up = state.gate_up.at(inner),
                                            .in_stride = 2 * inner,
                                            .d_out = hidden.data(),
                                            .d_gate = state.gate_up.data(),
                                            .d_up = state.gate_up.at(inner),
                                            .d_stride = 2 * inner,
                                            .out = hidden.data()});
      weight_gradient(executor, c, "FFN_W2_BWD_WEIGHT_MATMUL", {places.w2}, inner, width, gradient.data(),
                      hidden.data());
      executor.keep(std::move(hidden));
    }
    weight_gradient(executor, c, "FFN_W13_BWD_WEIGHT_MATMUL", {places.w1, places.w3}, width, 2 * inner,
                    state.gate_up.data(), state.normed2.data());
    {
      // normed2 is used up: its gradient takes its place.
      const Array d_normed = executor.made_anew("d normed residual", std::move(state.normed2));
      executor.matmul("FFN_W13_BWD_INPUT_MATMUL", linear_input_gradient(rows, width, 2 * inner, compute, type),
                      state.gate_up.data(), c.weight(places.w1), d_normed.data());
      executor.keep(std::move(state.gate_up));
      norm_backward(executor, c, "NORM2_BWD", places.norm2, state.middle, state.inv_rms2, d_normed, gradient);
      state.middle.reset();
    }

    {
      Array d_attended = array({"d attention output", "OUTPUT_BWD_INPUT_MATMUL"}, rows * width);
      executor.matmul("OUTPUT_BWD_INPUT_MATMUL", linear_input_gradient(rows, width, width, compute, type),
                      gradient.data(), c.weight(places.wo), d_attended.data());
      Array d_qkv = array({"d q, k, v", "ATTENTION_BWD"}, rows * 3 * width);
      const attention::BackwardArguments operands{as_const(part(c, state.qkv, 0)),
                                                  as_const(part(c, state.qkv, 1)),
                                                  as_const(part(c, state.qkv, 2)),
                                                  as_const(heads_of(c, state.attended)),
                                                  as_const(heads_of(c, d_attended)),
                                                  state.lse.as<float>(),
                                                  part(c, d_qkv, 0),
                                                  part(c, d_qkv, 1),
                                                  part(c, d_qkv, 2)};
      executor.attention_backward(*c.attention, c.attention_problem(), operands, state.attention);
      state.attention = AttentionState();
      state.qkv.reset();
      d_attended.reset();
      rotate(executor, c, d_qkv, true);
      weight_gradient(executor, c, "OUTPUT_BWD_WEIGHT_MATMUL", {places.wo}, width, width, gradient.data(),
                      state.attended.data());
      executor.keep(std::move(state.attended));
      weight_gradient(executor, c, "QKV_BWD_WEIGHT_MATMUL", {places.wq, places.wk, places.wv}, width, 3 * width,
                      d_qkv.data(), state.normed1.data());
      const Array d_normed = executor.made_anew("d normed residual", std::move(state.normed1));
      executor.matmul("QKV_BWD_INPUT_MATMUL", linear_input_gradient(rows, width, 3 * width, compute, type),
                      d_qkv.data(), c.weight(places.wq), d_normed.data());
      executor.keep(std::move(d_qkv));
      norm_backward(executor, c, "NORM1_BWD", places.norm1, state.input, state.inv_rms1, d_normed, gradient);
    }
    state = BlockState();
  }

 private:
  /// gradient += the norm's. A product aside may still read what it was.
  static void norm_backward(Executor& executor, const BlockContext& c, std::string_view name, std::int64_t place,
                            const Array& normalized, const Array& inv_rms, const Array& d_out, Array& gradient) {
    const void* before = gradient.data();
    gradient = executor.made_anew("d residual", std::move(gradient));
    executor.apply_with_workspace(name, OperationKind::norm, layers::rmsnorm_backward,
                                  layers::RmsNormBackward{.rows = c.rows(),
                                                          .width = c.config.d_model,
                                                          .dtype = c.precision.activation,
                                                          .gradient_dtype = c.precision.gradient,
                                                          .accumulate = c.gradients->accumulating(),
                                                          .s = normalized.data(),
                                                          .weight = c.weight(place),
                                                          .inv_rms = inv_rms.as<float>(),
                                                          .d_out = d_out.data(),
                                                          .d_residual = before,
                                                          .d_x = gradient.data(),
                                                          .d_weight = c.gradient(place)});
    c.gradients->ready(place, executor.memory().context().stream);
  }
};

}  // namespace

const Block& fused_block() {
  static const FusedBlock instance;
  return instance;
}

}  // namespace warpmeter::transformer
