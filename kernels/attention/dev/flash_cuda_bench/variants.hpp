#pragma once

#include <vector>

#include "kernels/attention/cuda/flash_sm80/kernels.hpp"

/// What is compared: the product's own kernel first, and tile variants beside it while they are in question.
namespace warpmeter::attention::flash_bench {

struct ForwardVariant {
  flash_sm80::ForwardKernel kernel;
};
struct BackwardVariant {
  flash_sm80::BackwardKernel kernel;
  int rows_m;  ///< queries a step: the layout of the row statistics; 0 where they are not looked at
};

[[nodiscard]] std::vector<ForwardVariant> forward_variants(int head_dim);
[[nodiscard]] std::vector<BackwardVariant> backward_variants(int head_dim);

}  // namespace warpmeter::attention::flash_bench
