#pragma once

#include <vector>

#include "kernels/attention/cuda/flash_sm80/kernels.hpp"

/// Tile variants under comparison. The product's own kernels are in the list under their names.
namespace warpmeter::attention::flash_bench {

struct ForwardVariant {
  int head_dim;
  flash_sm80::ForwardKernel kernel;
};
struct BackwardVariant {
  int head_dim;
  flash_sm80::BackwardKernel kernel;
  int rows_m;  ///< queries a step: the layout of the row statistics
};

[[nodiscard]] std::vector<ForwardVariant> forward_variants_d64();
[[nodiscard]] std::vector<ForwardVariant> forward_variants_d128();
[[nodiscard]] std::vector<BackwardVariant> backward_variants_d64();
[[nodiscard]] std::vector<BackwardVariant> backward_variants_d128();

}  // namespace warpmeter::attention::flash_bench
