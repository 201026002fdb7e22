#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>

#include "kernels/transformer/config.hpp"
#include "kernels/transformer/executor.hpp"
#include "kernels/transformer/gradients.hpp"
#include "kernels/transformer/parameter_layout.hpp"
#include "kernels/transformer/precision.hpp"

namespace warpmeter::transformer {

/// naive: operation by operation, each with its own output, like an eager framework. fused: residual and norm in one
/// pass, RoPE in one pass over Q and K in place, one product for Q, K and V and one for the FFN's two inner matrices,
/// SwiGLU in one pass, its output computed again in the backward instead of kept.
enum class Structure : std::uint8_t { naive, fused };
[[nodiscard]] std::string_view name(Structure structure) noexcept;

/// What every block of a model shares. Borrowed pointers; null in a planning memory.
struct BlockContext {
  ModelConfig config;
  PrecisionPolicy precision;
  std::int64_t batch = 1, context = 1;
  const attention::Implementation* attention = nullptr;
  const float* rope_table = nullptr;  ///< (context, head_dim / 2, 2)
  const Array* weights = nullptr;     ///< flat, in ParameterLayout's places
  const Gradients* gradients = nullptr;

  [[nodiscard]] std::int64_t rows() const { return batch * context; }
  [[nodiscard]] attention::AttentionProblem attention_problem() const;
  [[nodiscard]] const void* weight(std::int64_t place) const { return weights->at(place); }
  [[nodiscard]] void* gradient(std::int64_t place) const { return gradients->at(place); }
};

/// The residual stream between two blocks: the residual, and what is still to be added to it.
struct ResidualStream {
  Array current;          ///< the residual itself, or the last block's output when has_base
  bool has_base = false;  ///< the residual is base + current
  const void* base = nullptr;
  Array base_owner;  ///< holds base when no block's state does
};

/// What one block keeps from forward to backward; which of the arrays depends on the structure.
struct BlockState {
  Array input;  ///< the residual that enters: what norm 1 normalizes
  Array inv_rms1, normed1;
  Array qkv;      ///< fused: rows x 3 d_model, rotated
  Array q, k, v;  ///< naive; q and k rotated
  Array lse, attended;
  AttentionState attention;
  Array middle;  ///< the residual between attention and FFN
  Array inv_rms2, normed2;
  Array gate_up;                      ///< fused: rows x 2 d_ff
  Array gate, up, activated, hidden;  ///< naive
};

/// What a forward keeps: nothing (inference), the block's input alone (recompute), or all that a backward needs.
enum class Keep : std::uint8_t { nothing, input, everything };

class Block {
 public:
  virtual ~Block() = default;
  /// Takes the residual stream through block `places`. With `only_for_backward` it ends once everything that the
  /// backward needs is there; `stream` is then left empty.
  virtual void forward(Executor& executor, const BlockContext& context, const LayerPlaces& places,
                       ResidualStream& stream, Keep keep, BlockState& state, bool only_for_backward) const = 0;
  /// `gradient` is that of the block's output and becomes that of its input. Uses up `state`.
  virtual void backward(Executor& executor, const BlockContext& context, const LayerPlaces& places, Array& gradient,
                        BlockState& state) const = 0;
};

[[nodiscard]] const Block& block(Structure structure);
[[nodiscard]] const Block& naive_block();
[[nodiscard]] const Block& fused_block();

/// The gradient of a linear layer's weight, or of several that lie one behind the other and make one matrix: added to
/// what is there while gradients accumulate, left out where none of them is trained. May run aside.
void weight_gradient(Executor& executor, const BlockContext& context, std::string_view name,
                     std::initializer_list<std::int64_t> places, std::int64_t in, std::int64_t out, const void* d_y,
                     const void* x);

/// The norm that takes the residual stream in: adds what is pending (fused: in the same pass; naive: it never is).
struct NormedResidual {
  Array residual, inv_rms, normed;
};
[[nodiscard]] NormedResidual norm_stream(Executor& executor, const BlockContext& context, std::string_view name,
                                         const void* weight, ResidualStream& stream);

}  // namespace warpmeter::transformer
