// A block has one row of Q and K. Its threads are positions within a head times some of the heads; a thread turns the
// same kCount elements of every head it comes to, with the angles in registers.
#include "kernels/layers/cuda/launch.cuh"
#include "kernels/layers/cuda/vectors.cuh"
#include "kernels/layers/detail/operations.hpp"

namespace warpmeter::layers::cuda {

namespace {

constexpr int kThreads = 256;

/// kCount elements, whole pairs. kPacked: in vectors of kCount * sizeof(T) bytes.
template <bool kPacked, int kCount, class T>
__global__ void __launch_bounds__(kThreads) rope_kernel(RopeArguments a, int positions, int concurrent) {
  follow_previous();
  const std::int64_t row = blockIdx.x;
  const int slot = static_cast<int>(threadIdx.x) / positions, first = static_cast<int>(threadIdx.x) % positions;
  if (slot >= concurrent) return;
  const float* table = a.table + row % a.seq_len * a.head_dim;
  const int head_dim = static_cast<int>(a.head_dim), heads = static_cast<int>(a.heads);
  const int units = a.k_in != nullptr ? 2 * heads : heads;
  for (int element = first * kCount; element < head_dim; element += positions * kCount) {
    float angles[kCount];
    load(table + element, angles);
    for (int unit = slot; unit < units; unit += concurrent) {
      const bool is_k = unit >= heads;
      const std::int64_t place = static_cast<std::int64_t>(is_k ? unit - heads : unit) * head_dim + element;
      const T* in = static_cast<const T*>(is_k ? a.k_in : a.q_in) + row * a.in_stride + place;
      T* out = static_cast<T*>(is_k ? a.k_out : a.q_out) + row * a.out_stride + place;
      float x[kCount];
      if constexpr (kPacked) {
        load(in, x);
      } else {
#pragma unroll
        for (int i = 0; i < kCount; ++i) x[i] = to_float(in[i]);
      }
#pragma unroll
      for (int i = 0; i < kCount; i += 2) {
        const float cosine = angles[i], sine = a.inverse ? -angles[i + 1] : angles[i + 1];
        const float even = x[i], odd = x[i + 1];
        x[i] = even * cosine - odd * sine;
        x[i + 1] = odd * cosine + even * sine;
      }
      if constexpr (kPacked) {
        store(out, x);
      } else {
#pragma unroll
        for (int i = 0; i < kCount; ++i) out[i] = from_float<T>(x[i]);
      }
    }
  }
}

}  // namespace

void rope(const Context& context, const RopeArguments& a) {
  if (a.rows == 0 || a.heads == 0) return;
  WM_CHECK(a.rows <= kMaxGrid && a.heads * a.head_dim <= (std::int64_t{1} << 30),
           "too many rows or heads for one grid");
  WM_CHECK(reinterpret_cast<std::uintptr_t>(a.table) % kVectorBytes == 0, "the table begins on 16 bytes");
  const DeviceGuard guard(context.device());
  const std::int64_t units = (a.k_in != nullptr ? 2 : 1) * a.heads;
  for_storage(a.dtype, [&](auto type) {
    using T = decltype(type);
    const auto run = [&](auto packed, auto lanes) {
      constexpr int kCount = decltype(lanes)::value;
      const std::int64_t positions = std::min<std::int64_t>(a.head_dim / kCount, kThreads);
      const std::int64_t concurrent = std::min(units, kThreads / positions);
      launch(context, rope_kernel<decltype(packed)::value, kCount, T>, grid_of(a.rows),
             round_to_warps(positions * concurrent), 0, a, static_cast<int>(positions), static_cast<int>(concurrent));
    };
    constexpr int kVector = kLanes<T>;
    if (aligned(a.q_in, a.k_in, a.q_out, a.k_out) && a.head_dim % kVector == 0 && a.in_stride % kVector == 0 &&
        a.out_stride % kVector == 0) {
      run(std::true_type{}, std::integral_constant<int, kVector>{});
    } else {
      run(std::false_type{}, std::integral_constant<int, 2>{});
    }
  });
  check_launch();
}

}  // namespace warpmeter::layers::cuda
