#pragma once

#include "kernels/attention/cuda/flash_sm80/backward.cuh"
#include "kernels/attention/cuda/flash_sm80/kernels.hpp"

/// The tiles that the backward uses, by head dim. How they compare with others: dev/flash_sm80.md.
namespace warpmeter::attention::flash_sm80 {

template <class T, int kHeadDim, bool kVector>
struct BackwardConfig;

template <class T, bool kVector>
struct BackwardConfig<T, 32, kVector> {
  using Traits = BackwardTraits<T, 32, 64, 32, 4, 1, 4, kVector>;
};
template <class T, bool kVector>
struct BackwardConfig<T, 64, kVector> {
  using Traits = BackwardTraits<T, 64, 64, 32, 4, 2, 2, kVector, true>;
};
template <class T, bool kVector>
struct BackwardConfig<T, 96, kVector> {
  using Traits = BackwardTraits<T, 96, 64, 32, 4, 1, 4, kVector>;
};
template <class T, bool kVector>
struct BackwardConfig<T, 128, kVector> {
  using Traits = BackwardTraits<T, 128, 64, 32, 4, 1, 2, kVector>;
};
template <class T, bool kVector>
struct BackwardConfig<T, 256, kVector> {
  using Traits = BackwardTraits<T, 256, 32, 16, 4, 1, 2, kVector>;
};

template <class T, int kHeadDim, bool kVector>
constexpr BackwardKernel make_backward_kernel(const char* name) {
  using Traits = typename BackwardConfig<T, kHeadDim, kVector>::Traits;
  return {name, launch_backward<Traits>, backward_workspace<Traits>};
}

}  // namespace warpmeter::attention::flash_sm80
