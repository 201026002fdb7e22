#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "kernels/runtime/tensor.hpp"

/// What the parts of this bench share. Not for the product.
namespace warpmeter::layers::bench {

/// Microseconds of one call of `work`, which enqueues on the context's stream: a graph of `calls` calls, the shortest
/// of a few launches. Arrays that fit in the L2 cache are then found there, as between the operations of a model.
[[nodiscard]] double time_us(const Context& context, int calls, const std::function<void()>& work);

/// A dense array of normal values.
[[nodiscard]] Tensor random(const Context& context, std::int64_t count, DType dtype, float deviation = 1);

/// The linear layers of the model's sizes: TFLOP/s of what was chosen and of the heuristics' first candidate.
void time_products(const Context& context, const std::string& only);

}  // namespace warpmeter::layers::bench
