#pragma once

#include "kernels/attention/cuda/flash_sm80/forward.cuh"
#include "kernels/attention/cuda/flash_sm80/kernels.hpp"

/// The tiles that the forward uses, by head dim. How they compare with others: dev/flash_sm80.md.
namespace warpmeter::attention::flash_sm80 {

template <class T, int kHeadDim, bool kVector>
struct ForwardConfig;

template <class T, bool kVector>
struct ForwardConfig<T, 32, kVector> {
  using Traits = ForwardTraits<T, 32, 128, 64, 4, 3, true, kVector>;
};
template <class T, bool kVector>
struct ForwardConfig<T, 64, kVector> {
  using Traits = ForwardTraits<T, 64, 128, 64, 4, 2, true, kVector>;
};
template <class T, bool kVector>
struct ForwardConfig<T, 96, kVector> {
  using Traits = ForwardTraits<T, 96, 64, 64, 4, 3, false, kVector>;
};
template <class T, bool kVector>
struct ForwardConfig<T, 128, kVector> {
  using Traits = ForwardTraits<T, 128, 128, 48, 4, 2, false, kVector>;
};
template <class T, bool kVector>
struct ForwardConfig<T, 256, kVector> {
  using Traits = ForwardTraits<T, 256, 128, 64, 8, 1, false, kVector>;
};

/// In kSharedBytesLeast; head dims that are not here have their own tiles in it.
template <class T, int kHeadDim, bool kVector>
struct ForwardConfig99k;

template <class T, bool kVector>
struct ForwardConfig99k<T, 256, kVector> {
  using Traits = ForwardTraits<T, 256, 64, 16, 4, 1, false, kVector>;
};

template <class Traits>
constexpr ForwardKernel make_forward_kernel_of(const char* name) {
  return {name, launch_forward<Traits>, sizeof(typename Traits::SharedStorage)};
}

template <class T, int kHeadDim, bool kVector>
constexpr ForwardKernel make_forward_kernel(const char* name) {
  return make_forward_kernel_of<typename ForwardConfig<T, kHeadDim, kVector>::Traits>(name);
}

template <class T, int kHeadDim, bool kVector>
constexpr ForwardKernel make_forward_kernel_99k(const char* name) {
  using Traits = typename ForwardConfig99k<T, kHeadDim, kVector>::Traits;
  static_assert(sizeof(typename Traits::SharedStorage) <= kSharedBytesLeast);
  return make_forward_kernel_of<Traits>(name);
}

}  // namespace warpmeter::attention::flash_sm80
