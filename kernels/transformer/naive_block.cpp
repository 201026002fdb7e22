#include "kernels/layers/elementwise.hpp"
#include "kernels/layers/rmsnorm.hpp"
#include "kernels/layers/rope.hpp"
#include "kernels/transformer/block.hpp"

namespace warpmeter::transformer {

namespace {

using attention::Operand;
using layers::ElementwiseOperation;

Operand heads_of(const BlockContext& c, const Array& dense) {
  const std::int64_t width = c.config.d_model;
  return {dense.data(), c.context * width, c.config.head_dim(), width};
}

/// The operations of one block on one executor: every result an array of its own.
struct Eager {
  Executor& executor;
  const BlockContext& c;

  [[nodiscard]] Array array(const ArrayName& name, std::int64_t columns) const {
    return {executor.memory(), name, c.rows() * columns, c.precision.activation, MemoryKind::activations};
  }

  [[nodiscard]] Array linear(const ArrayName& name, const Array& x, std::int64_t place, std::int64_t in,
                             std::int64_t out) const {
    Array y = array(name, out);
    executor.matmul(name.what, layers::linear_forward(c.rows(), in, out, c.precision.compute, c.precision.activation),
                    x.data(), c.weight(place), y.data());
    return y;
  }

  /// The weight's gradient and the input's.
  [[nodiscard]] Array linear_backward(std::string_view weight_name, const ArrayName& input_name, const Array& d_y,
                                      const Array& x, std::int64_t place, std::int64_t in, std::int64_t out) const {
    weight_gradient(executor, c, weight_name, {place}, in, out, d_y.data(), x.data());
    Array d_x = array(input_name, in);
    executor.matmul(input_name.what,
                    layers::linear_input_gradient(c.rows(), in, out, c.precision.compute, c.precision.activation),
                    d_y.data(), c.weight(place), d_x.data());
    return d_x;
  }

  [[nodiscard]] Array rotated(const ArrayName& name, const Array& x, bool inverse) const {
    Array y = array(name, c.config.d_model);
    executor.apply(name.what, OperationKind::elementwise, layers::rope,
                   layers::RopeArguments{.rows = c.rows(),
                                         .seq_len = c.context,
                                         .heads = c.config.heads,
                                         .head_dim = c.config.head_dim(),
                                         .dtype = c.precision.activation,
                                         .inverse = inverse,
                                         .table = c.rope_table,
                                         .q_in = x.data(),
                                         .in_stride = c.config.d_model,
                                         .q_out = y.data(),
                                         .out_stride = c.config.d_model});
    return y;
  }

  [[nodiscard]] Array elementwise(const ArrayName& name, ElementwiseOperation operation, const Array& a,
                                  const Array& b) const {
    Array out(executor.memory(), name, a.count(), c.precision.activation, MemoryKind::activations);
    executor.apply(name.what, OperationKind::elementwise, layers::elementwise,
                   layers::Elementwise{.operation = operation,
                                       .count = a.count(),
                                       .dtype = c.precision.activation,
                                       .a = a.data(),
                                       .b = b.data(),
                                       .out = out.data()});
    return out;
  }

  [[nodiscard]] Array norm_backward(const ArrayName& name, std::int64_t place, const Array& normalized,
                                    const Array& inv_rms, const Array& d_out) const {
    Array d_x = array(name, c.config.d_model);
    executor.apply_with_workspace(name.what, OperationKind::norm, layers::rmsnorm_backward,
                                  layers::RmsNormBackward{.rows = c.rows(),
                                                          .width = c.config.d_model,
                                                          .dtype = c.precision.activation,
                                                          .gradient_dtype = c.precision.gradient,
                                                          .accumulate = c.gradients->accumulating(),
                                                          .s = normalized.data(),
                                                          .weight = c.weight(place),
                                                          .inv_rms = inv_rms.as<float>(),
                                                          .d_out = d_out.data(),
                                                          .d_x = d_x.data(),
                                                          .d_weight = c.gradient(place)});
    c.gradients->ready(place, executor.memory().context().stream);
    return d_x;
  }
};

class NaiveBlock final : public Block {
 public:
  void forward(Executor& executor, const BlockContext& c, const LayerPlaces& places, ResidualStream& stream, Keep keep,
               BlockState& state, bool only_for_backward) const override {
    const Eager eager{executor, c};
    const std::int64_t width = c.config.d_model, inner = c.config.d_ff;
    const bool all = keep == Keep::everything;

    NormedResidual first = norm_stream(executor, c, "NORM1", c.weight(places.norm1), stream);
    Array q, k;
    {
      const Array plain = eager.linear("Q_MATMUL", first.normed, places.wq, width, width);
      q = eager.rotated("ROPE_Q", plain, false);
    }
    {
      const Array plain = eager.linear("K_MATMUL", first.normed, places.wk, width, width);
      k = eager.rotated("ROPE_K", plain, false);
    }
    Array v = eager.linear("V_MATMUL", first.normed, places.wv, width, width);
    if (!all) first.normed.reset();
    Array attended = eager.array({"attention output", "ATTENTION"}, width);
    Array lse(executor.memory(), {"log-sum-exp", "ATTENTION"}, c.rows() * c.config.heads, DType::fp32,
              MemoryKind::activations);
    const attention::ForwardArguments operands{as_const(heads_of(c, q)), as_const(heads_of(c, k)),
                                               as_const(heads_of(c, v)), heads_of(c, attended), lse.as<float>()};
    AttentionState attention = executor.attention_forward(*c.attention, c.attention_problem(), operands, all);
    if (!all) {
      for (Array* used : {&q, &k, &v, &lse}) used->reset();
    }
    Array middle;
    {
      const Array projected = eager.linear("OUTPUT_MATMUL", attended, places.wo, width, width);
      middle = eager.elementwise("RESIDUAL1", ElementwiseOperation::add, first.residual, projected);
    }
    if (keep == Keep::nothing) {
      first.residual.reset();
    } else {
      state.input = std::move(first.residual);
    }
    if (!all) attended.reset();

    stream.current = std::move(middle);
    NormedResidual second = norm_stream(executor, c, "NORM2", c.weight(places.norm2), stream);
    Array gate = eager.linear("FFN_W1_MATMUL", second.normed, places.w1, width, inner);
    Array activated = eager.elementwise("SILU", ElementwiseOperation::silu, gate, gate);
    if (!all) gate.reset();
    Array up = eager.linear("FFN_W3_MATMUL", second.normed, places.w3, width, inner);
    if (!all) second.normed.reset();
    Array hidden = eager.elementwise("GATE", ElementwiseOperation::multiply, activated, up);
    if (!all) {
      activated.reset();
      up.reset();
    }
    if (!only_for_backward) {
      const Array out = eager.linear("FFN_W2_MATMUL", hidden, places.w2, inner, width);
      stream.current = eager.elementwise("RESIDUAL2", ElementwiseOperation::add, second.residual, out);
    }
    if (all) {
      state.inv_rms1 = std::move(first.inv_rms);
      state.normed1 = std::move(first.normed);
      state.q = std::move(q);
      state.k = std::move(k);
      state.v = std::move(v);
      state.lse = std::move(lse);
      state.attended = std::move(attended);
      state.attention = std::move(attention);
      state.middle = std::move(second.residual);
      state.inv_rms2 = std::move(second.inv_rms);
      state.normed2 = std::move(second.normed);
      state.gate = std::move(gate);
      state.up = std::move(up);
      state.activated = std::move(activated);
      state.hidden = std::move(hidden);
    }
  }

  void backward(Executor& executor, const BlockContext& c, const LayerPlaces& places, Array& gradient,
                BlockState& state) const override {
    const Eager eager{executor, c};
    const std::int64_t width = c.config.d_model, inner = c.config.d_ff;
    constexpr auto kAdd = ElementwiseOperation::add;

    {
      Array d_hidden = eager.linear_backward("FFN_W2_BWD_WEIGHT_MATMUL", "FFN_W2_BWD_INPUT_MATMUL", gradient,
                                             state.hidden, places.w2, inner, width);
      state.hidden.reset();
      Array d_activated = eager.elementwise("GATE_BWD_ACTIVATED", ElementwiseOperation::multiply, d_hidden, state.up);
      Array d_up = eager.elementwise("GATE_BWD_UP", ElementwiseOperation::multiply, d_hidden, state.activated);
      d_hidden.reset();
      state.up.reset();
      state.activated.reset();
      Array d_gate = eager.elementwise("SILU_BWD", ElementwiseOperation::silu_backward, state.gate, d_activated);
      d_activated.reset();
      state.gate.reset();
      Array d_normed = eager.linear_backward("FFN_W3_BWD_WEIGHT_MATMUL", "FFN_W3_BWD_INPUT_MATMUL", d_up, state.normed2,
                                             places.w3, width, inner);
      d_up.reset();
      const Array other = eager.linear_backward("FFN_W1_BWD_WEIGHT_MATMUL", "FFN_W1_BWD_INPUT_MATMUL", d_gate,
                                                state.normed2, places.w1, width, inner);
      d_gate.reset();
      d_normed = eager.elementwise("NORM2_GRADIENTS", kAdd, d_normed, other);
      const Array d_middle = eager.norm_backward("NORM2_BWD", places.norm2, state.middle, state.inv_rms2, d_normed);
      gradient = eager.elementwise("RESIDUAL2_BWD", kAdd, gradient, d_middle);
      state.middle.reset();
      state.normed2.reset();
    }
    Array d_q = eager.array({"d q", "ATTENTION_BWD"}, width), d_k = eager.array({"d k", "ATTENTION_BWD"}, width),
          d_v = eager.array({"d v", "ATTENTION_BWD"}, width);
    {
      const Array d_attended = eager.linear_backward("OUTPUT_BWD_WEIGHT_MATMUL", "OUTPUT_BWD_INPUT_MATMUL", gradient,
                                                     state.attended, places.wo, width, width);
      const attention::BackwardArguments operands{as_const(heads_of(c, state.q)),
                                                  as_const(heads_of(c, state.k)),
                                                  as_const(heads_of(c, state.v)),
                                                  as_const(heads_of(c, state.attended)),
                                                  as_const(heads_of(c, d_attended)),
                                                  state.lse.as<float>(),
                                                  heads_of(c, d_q),
                                                  heads_of(c, d_k),
                                                  heads_of(c, d_v)};
      executor.attention_backward(*c.attention, c.attention_problem(), operands, state.attention);
      state.attention = AttentionState();
      for (Array* used : {&state.q, &state.k, &state.v, &state.attended, &state.lse}) used->reset();
    }
    Array d_normed =
        eager.linear_backward("V_BWD_WEIGHT_MATMUL", "V_BWD_INPUT_MATMUL", d_v, state.normed1, places.wv, width, width);
    d_v.reset();
    d_k = eager.rotated("ROPE_K_BWD", d_k, true);
    {
      const Array other = eager.linear_backward("K_BWD_WEIGHT_MATMUL", "K_BWD_INPUT_MATMUL", d_k, state.normed1,
                                                places.wk, width, width);
      d_normed = eager.elementwise("NORM1_GRADIENTS", kAdd, d_normed, other);
    }
    d_k.reset();
    d_q = eager.rotated("ROPE_Q_BWD", d_q, true);
    {
      const Array other = eager.linear_backward("Q_BWD_WEIGHT_MATMUL", "Q_BWD_INPUT_MATMUL", d_q, state.normed1,
                                                places.wq, width, width);
      d_normed = eager.elementwise("NORM1_GRADIENTS", kAdd, d_normed, other);
    }
    d_q.reset();
    const Array d_input = eager.norm_backward("NORM1_BWD", places.norm1, state.input, state.inv_rms1, d_normed);
    gradient = eager.elementwise("RESIDUAL1_BWD", kAdd, gradient, d_input);
    state = BlockState();
  }
};

}  // namespace

const Block& naive_block() {
  static const NaiveBlock instance;
  return instance;
}

}  // namespace warpmeter::transformer
