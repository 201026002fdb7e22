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
    static_assert(kGroups % 4 == 0);
    const int quad_thread = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::int64_t row = first_row + sm90::row_of_thread(half);
#pragma unroll
      for (int group = 0; group < kGroups; group += 4) {
        std::uint32_t gate[4], up[4], hidden[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int j = 4 * (group + i) + 2 * half;
          gate[i] = ptx::pack2<T>(d[j], d[j + 1]);
          up[i] = ptx::pack2<T>(d[j + kColumns / 4], d[j + 1 + kColumns / 4]);
          // As a pass of its own would find them.
          const float2 g = ptx::unpack2<T>(gate[i]), u = ptx::unpack2<T>(up[i]);
          hidden[i] = ptx::pack2<T>(g.x * sigmoid(g.x) * u.x, g.y * sigmoid(g.y) * u.y);
        }
        const int column = column_tile * part_columns + (group + quad_thread) * 8;
        const bool inside = row < rows && column < width;
        const auto put = [&](void* matrix, std::uint32_t(&piece)[4], std::int64_t stride, std::int64_t offset) {
          ptx::transpose_quad(piece, quad_thread);
          if (!inside) return;
          *reinterpret_cast<uint4*>(static_cast<T*>(matrix) + row * stride + offset + column) =
              make_uint4(piece[0], piece[1], piece[2], piece[3]);
        };
        if (gate_up != nullptr) {
          put(gate_up, gate, 2 * static_cast<std::int64_t>(width), 0);
          put(gate_up, up, 2 * static_cast<std::int64_t>(width), width);
        }
        if (out != nullptr) put(out, hidden, width, 0);
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
  const DeviceGuard guard(context.device());
  const int multiprocessors = sm90::attribute(context.device(), cudaDevAttrMultiProcessorCount);
  const std::int64_t row_tiles = divide_up(a.rows, sm90::kRows);
  const auto cost = [&](int columns) { return sm90::rounds_cost(row_tiles, 2 * a.width, columns, multiprocessors); };
  const bool narrow = cost(192) < cost(256);
  const auto of_type = [&](auto type) {
    using T = decltype(type);
    narrow ? run<T, 192>(context, a, multiprocessors) : run<T, 256>(context, a, multiprocessors);
  };
  a.dtype == DType::bf16 ? of_type(__nv_bfloat16{}) : of_type(__half{});
  check_launch();
}

}  // namespace warpmeter::layers::cuda
