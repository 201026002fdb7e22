// A thread has pairs of neighbouring columns, which are the pairs that RoPE turns.
#include "kernels/layers/cuda/linear_sm90.cuh"
#include "kernels/layers/detail/linear_epilogues.hpp"
#include "kernels/layers/linear_epilogue.hpp"

namespace warpmeter::layers::cuda {

namespace {

namespace sm90 = linear_sm90;

struct RopeEpilogue {
  void* qkv;
  const float* table;
  int rows, seq_len, width, head_dim;
  int tile_columns;

  __device__ __forceinline__ int weight_row(int column_tile, int part) const {
    return column_tile * tile_columns + part * (tile_columns / sm90::kWeightParts);
  }

  template <class T, int kColumns>
  __device__ __forceinline__ void store(const float (&d)[kColumns / 2], int first_row, int column_tile) const {
    constexpr int kGroups = kColumns / 8;
    static_assert(kGroups % 4 == 0);
    const int quad_thread = static_cast<int>(threadIdx.x) % 4, first_column = column_tile * kColumns;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + sm90::row_of_thread(half);
      // Beyond the last row: some angle, never stored.
      const float* angles = table + static_cast<std::int64_t>(row % seq_len) * head_dim;
      int within = first_column % head_dim + 2 * quad_thread;  // of its head; eight columns are never of two
      T* const out = static_cast<T*>(qkv) + static_cast<std::int64_t>(row) * 3 * width;
#pragma unroll
      for (int group = 0; group < kGroups; group += 4) {
        std::uint32_t piece[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int j = 4 * (group + i) + 2 * half;
          piece[i] = ptx::pack2<T>(d[j], d[j + 1]);
          if (first_column + (group + i) * 8 < 2 * width) {
            const float2 x = ptx::unpack2<T>(piece[i]);  // as a pass of its own would find them
            const float2 angle = __ldg(reinterpret_cast<const float2*>(angles + within));  // not behind the stores
            piece[i] = ptx::pack2<T>(x.x * angle.x - x.y * angle.y, x.y * angle.x + x.x * angle.y);
          }
          within += 8;
          if (within >= head_dim) within -= head_dim;
        }
        ptx::transpose_quad(piece, quad_thread);
        const int column = first_column + (group + quad_thread) * 8;
        if (row < rows && column < 3 * width) {
          *reinterpret_cast<uint4*>(out + column) = make_uint4(piece[0], piece[1], piece[2], piece[3]);
        }
      }
    }
  }
};

template <class T, int kColumns>
void run(const Context& context, const RopeLinear& a, int multiprocessors) {
  const std::int64_t width = a.heads * a.head_dim;
  const RopeEpilogue epilogue{a.qkv,
                              a.table,
                              static_cast<int>(a.rows),
                              static_cast<int>(a.seq_len),
                              static_cast<int>(width),
                              static_cast<int>(a.head_dim),
                              kColumns};
  sm90::launch_tiles<T, kColumns>(context, epilogue, a.x, a.rows, a.weight, 3 * width, width, 3 * width,
                                  multiprocessors);
}

}  // namespace

bool fuses(Device device, const RopeLinear& a) {
  const std::int64_t width = a.heads * a.head_dim;
  return a.head_dim % 8 == 0 && sm90::takes(device, a.dtype, a.rows, width, 3 * width, {a.x, a.weight, a.qkv});
}

void rope_linear(const Context& context, const RopeLinear& a) {
  sm90::with_kernel(context, a.dtype, a.rows, 3 * a.heads * a.head_dim,
                    [&]<class T, int kColumns>(int multiprocessors) { run<T, kColumns>(context, a, multiprocessors); });
}

}  // namespace warpmeter::layers::cuda
