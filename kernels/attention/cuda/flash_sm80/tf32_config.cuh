#pragma once

#include "kernels/attention/cuda/flash_sm80/kernels.hpp"
#include "kernels/attention/cuda/flash_sm80/tf32_backward.cuh"
#include "kernels/attention/cuda/flash_sm80/tf32_forward.cuh"
#include "kernels/attention/cuda/flash_sm80/tf32_query_gradient.cuh"

/// The tiles that the tf32 kernels use, by head dim: as many warps an SM as shared memory and registers allow, eight or
/// more. How they compare with others: dev/flash_sm80.md.
namespace warpmeter::attention::flash_sm80 {

template <class T, bool kSplit, int kHeadDim>
struct Tf32Config;

// Forward: rows, keys, warps, blocks an SM. Backward: queries, keys, column warps, blocks an SM.
template <class T, bool kSplit>
struct Tf32Config<T, kSplit, 16> {
  using Forward = Tf32ForwardTraits<T, kSplit, 16, 64, 64, 4, 4>;
  using Backward = Tf32BackwardTraits<T, kSplit, 16, 64, 64, 1, 3, true>;
};
template <class T, bool kSplit>
struct Tf32Config<T, kSplit, 32> {
  using Forward = Tf32ForwardTraits<T, kSplit, 32, 64, 64, 4, 3>;
  using Backward = Tf32BackwardTraits<T, kSplit, 32, 32, 64, 1, 3, true>;
};
template <class T, bool kSplit>
struct Tf32Config<T, kSplit, 64> {
  using Forward = Tf32ForwardTraits<T, kSplit, 64, 64, 32, 4, 3>;
  using Backward = Tf32BackwardTraits<T, kSplit, 64, 32, 64, 1, 2, true>;
};
template <class T, bool kSplit>
struct Tf32Config<T, kSplit, 128> {
  using Forward = Tf32ForwardTraits<T, kSplit, 128, 64, 32, 4, 2>;
  using Backward = Tf32BackwardTraits<T, kSplit, 128, 32, 128, 1, 1, true>;
};
template <class T, bool kSplit>
struct Tf32Config<T, kSplit, 256> {
  using Forward = Tf32ForwardTraits<T, kSplit, 256, 64, 16, 4, 1>;
  using Backward = Tf32BackwardTraits<T, kSplit, 256, 16, 64, 2, 1, true>;
};

/// The two-pass backward is not tuned: three head dims.
template <class T, bool kSplit, int kHeadDim>
struct TwoPassConfig;
template <class T, bool kSplit>
struct TwoPassConfig<T, kSplit, 64> {
  using Query = Tf32QueryGradientTraits<T, kSplit, 64, 64, 32, 2>;
  using Key = Tf32BackwardTraits<T, kSplit, 64, 32, 64, 1, 2, false>;
};
template <class T, bool kSplit>
struct TwoPassConfig<T, kSplit, 128> {
  using Query = Tf32QueryGradientTraits<T, kSplit, 128, 64, 32, 1>;
  using Key = Tf32BackwardTraits<T, kSplit, 128, 32, 128, 1, 1, false>;
};
template <class T, bool kSplit>
struct TwoPassConfig<T, kSplit, 256> {
  using Query = Tf32QueryGradientTraits<T, kSplit, 256, 64, 16, 1>;
  using Key = Tf32BackwardTraits<T, kSplit, 256, 16, 64, 2, 1, false>;
};

/// In kSharedBytesLeast; head dims that are not here have their own tiles in it.
template <class T, bool kSplit, int kHeadDim>
struct Tf32Config99k;
template <class T, bool kSplit>
struct Tf32Config99k<T, kSplit, 128> {
  using Forward = Tf32ForwardTraits<T, kSplit, 128, 64, 16, 4, 1>;
  using Backward = Tf32BackwardTraits<T, kSplit, 128, 16, 32, 2, 1, true>;
};
template <class T, bool kSplit>
struct Tf32Config99k<T, kSplit, 256> {
  using Forward = Tf32ForwardTraits<T, kSplit, 256, 32, 16, 2, 1>;
  using Backward = Tf32BackwardTraits<T, kSplit, 256, 16, 16, 4, 1, true, 1, 1>;
};

/// In kSharedBytesSm80, where the tiles above are too large for it.
template <class T, bool kSplit>
using Tf32BackwardTraits128Of163k = Tf32BackwardTraits<T, kSplit, 128, 16, 64, 1, 1, true>;

template <class T, bool kSplit, int kHeadDim>
struct TwoPassConfig99k;
template <class T, bool kSplit>
struct TwoPassConfig99k<T, kSplit, 128> {
  using Query = Tf32QueryGradientTraits<T, kSplit, 128, 32, 16, 1>;
  using Key = Tf32BackwardTraits<T, kSplit, 128, 16, 32, 2, 1, false>;
};
template <class T, bool kSplit>
struct TwoPassConfig99k<T, kSplit, 256> {
  using Query = Tf32QueryGradientTraits<T, kSplit, 256, 32, 16, 1, 1>;
  using Key = Tf32BackwardTraits<T, kSplit, 256, 16, 16, 4, 1, false, 1, 1>;
};

template <class Traits>
constexpr ForwardKernel make_tf32_forward_kernel_of(const char* name) {
  return {name, launch_tf32_forward<Traits>, sizeof(typename Traits::SharedStorage)};
}

template <class Traits>
constexpr BackwardKernel make_tf32_backward_kernel_of(const char* name) {
  return {name, launch_tf32_backward<Traits>, tf32_backward_workspace<Traits>, sizeof(typename Traits::SharedStorage)};
}

template <class Config>
constexpr BackwardKernel make_two_pass_kernel_of(const char* name) {
  constexpr std::size_t kQueryBytes = sizeof(typename Config::Query::SharedStorage);
  constexpr std::size_t kKeyBytes = sizeof(typename Config::Key::SharedStorage);
  return {name, launch_two_pass_backward<typename Config::Query, typename Config::Key>,
          tf32_backward_workspace<typename Config::Key>, kQueryBytes > kKeyBytes ? kQueryBytes : kKeyBytes};
}

template <class T, bool kSplit, int kHeadDim>
constexpr ForwardKernel make_tf32_forward_kernel(const char* name) {
  return make_tf32_forward_kernel_of<typename Tf32Config<T, kSplit, kHeadDim>::Forward>(name);
}

template <class T, bool kSplit, int kHeadDim>
constexpr BackwardKernel make_tf32_backward_kernel(const char* name) {
  return make_tf32_backward_kernel_of<typename Tf32Config<T, kSplit, kHeadDim>::Backward>(name);
}

template <class T, bool kSplit, int kHeadDim>
constexpr BackwardKernel make_two_pass_kernel(const char* name) {
  return make_two_pass_kernel_of<TwoPassConfig<T, kSplit, kHeadDim>>(name);
}

}  // namespace warpmeter::attention::flash_sm80
