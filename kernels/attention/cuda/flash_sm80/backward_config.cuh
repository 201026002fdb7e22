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

/// In kSharedBytesLeast; head dims that are not here have their own tiles in it.
template <class T, int kHeadDim, bool kVector>
struct BackwardConfig99k;

template <class T, bool kVector>
struct BackwardConfig99k<T, 64, kVector> {
  using Traits = BackwardTraits<T, 64, 32, 32, 4, 1, 1, kVector, true>;
};
template <class T, bool kVector>
struct BackwardConfig99k<T, 96, kVector> {
  using Traits = BackwardTraits<T, 96, 32, 32, 2, 1, 2, kVector>;
};
template <class T, bool kVector>
struct BackwardConfig99k<T, 128, kVector> {
  using Traits = BackwardTraits<T, 128, 32, 32, 2, 1, 1, kVector>;
};
template <class T, bool kVector>
struct BackwardConfig99k<T, 256, kVector> {
  using Traits = BackwardTraits<T, 256, 16, 16, 2, 1, 1, kVector>;
};

/// In kSharedBytesSm80, where the tiles above are too large for it.
template <class T, bool kVector>
using BackwardTraits128Of163k = BackwardTraits<T, 128, 64, 32, 2, 1, 2, kVector>;

template <class Traits>
constexpr BackwardKernel make_backward_kernel_of(const char* name) {
  return {name, launch_backward<Traits>, backward_workspace<Traits>, sizeof(typename Traits::SharedStorage)};
}

template <class T, int kHeadDim, bool kVector>
constexpr BackwardKernel make_backward_kernel(const char* name) {
  return make_backward_kernel_of<typename BackwardConfig<T, kHeadDim, kVector>::Traits>(name);
}

template <class T, int kHeadDim, bool kVector>
constexpr BackwardKernel make_backward_kernel_99k(const char* name) {
  using Traits = typename BackwardConfig99k<T, kHeadDim, kVector>::Traits;
  static_assert(sizeof(typename Traits::SharedStorage) <= kSharedBytesLeast);
  return make_backward_kernel_of<Traits>(name);
}

}  // namespace warpmeter::attention::flash_sm80
