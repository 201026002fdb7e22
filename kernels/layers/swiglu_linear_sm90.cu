// gate and up of a tile are the two parts of its columns, so that both of an element are the same thread's.
#include "kernels/layers/cuda/linear_sm90.cuh"
#include "kernels/layers/detail/linear_epilogues.hpp"
#include "kernels/layers/linear_epilogue.hpp"

namespace warpmeter::layers::cuda {

namespace {

namespace sm90 = linear_sm90;

/// Of a tile of kColumns: kColumns / 2 of the result.
struct SwigluEpilogue {
  void *gate_up, *out;  ///< null: not wanted
  int rows, width;
  int part_columns;

  __device__ __forceinline__ int weight_row(int column_tile, int part) const {
    // What comes after the last gate are ups: never stored.
    return column_tile * part_columns + part * width;
  }

  template <class T, int kColumns>
  __device__ __forceinline__ void store(const float (&d)[kColumns / 2], int first_row, int column_tile) const {
    constexpr int kGroups = kColumns / 2 / 8;  // of eight columns of the result
    constexpr int kInFours = kGroups / 4 * 4;
    const int quad_thread = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::int64_t row = first_row + sm90::row_of_thread(half);
      // This thread's two columns of a group: gate, up and result, rounded where a pass of its own would find them so.
      const auto pairs_of = [&](int group, std::uint32_t& gate, std::uint32_t& up, std::uint32_t& hidden) {
        const int j = 4 * group + 2 * half;
        gate = ptx::pack2<T>(d[j], d[j + 1]);
        up = ptx::pack2<T>(d[j + kColumns / 4], d[j + 1 + kColumns / 4]);
        const float2 g = ptx::unpack2<T>(gate), u = ptx::unpack2<T>(up);
        hidden = ptx::pack2<T>(g.x * sigmoid(g.x) * u.x, g.y * sigmoid(g.y) * u.y);
      };
      const auto put_all = [&](int column, const auto& gate, const auto& up, const auto& hidden) {
        if (row >= rows || column >= width) return;
        const auto put = [&](void* matrix, std::int64_t stride, std::int64_t offset, const auto& piece) {
          using Piece = std::decay_t<decltype(piece)>;
          *reinterpret_cast<Piece*>(static_cast<T*>(matrix) + row * stride + offset + column) = piece;
        };
        if (gate_up != nullptr) {
          put(gate_up, 2 * static_cast<std::int64_t>(width), 0, gate);
          put(gate_up, 2 * static_cast<std::int64_t>(width), width, up);
        }
        if (out != nullptr) put(out, width, 0, hidden);
      };
      const int first_column = column_tile * part_columns;
#pragma unroll
      for (int group = 0; group < kInFours; group += 4) {
        std::uint32_t gate[4], up[4], hidden[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) pairs_of(group + i, gate[i], up[i], hidden[i]);
        if (gate_up != nullptr) {
          ptx::transpose_quad(gate, quad_thread);
          ptx::transpose_quad(up, quad_thread);
        }
        ptx::transpose_quad(hidden, quad_thread);
        const auto whole = [](const std::uint32_t(&x)[4]) { return make_uint4(x[0], x[1], x[2], x[3]); };
        put_all(first_column + (group + quad_thread) * 8, whole(gate), whole(up), whole(hidden));
      }
#pragma unroll
      for (int group = kInFours; group < kGroups; ++group) {
        std::uint32_t gate, up, hidden;
        pairs_of(group, gate, up, hidden);
        put_all(first_column + group * 8 + quad_thread * 2, gate, up, hidden);
      }
    }
  }
};

template <class T, int kColumns>
void run(const Context& context, const SwigluLinear& a, int multiprocessors) {
  const SwigluEpilogue epilogue{a.gate_up, a.out, static_cast<int>(a.rows), static_cast<int>(a.width), kColumns / 2};
  sm90::launch_tiles<T, kColumns>(context, epilogue, a.x, a.rows, a.weights, 2 * a.width, a.in,
                                  divide_up(a.width, kColumns / 2) * kColumns, multiprocessors);
}

}  // namespace

bool fuses(Device device, const SwigluLinear& a) {
  return sm90::takes(device, a.dtype, a.rows, a.in, a.width, {a.x, a.weights, a.gate_up, a.out});
}

void swiglu_linear(const Context& context, const SwigluLinear& a) {
  sm90::with_kernel(context, a.dtype, a.rows, 2 * a.width,
                    [&]<class T, int kColumns>(int multiprocessors) { run<T, kColumns>(context, a, multiprocessors); });
}

}  // namespace warpmeter::layers::cuda
