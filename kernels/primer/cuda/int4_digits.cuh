#pragma once

#include "kernels/primer/cuda/int4_weights.cuh"
#include "kernels/ptx/mma_int8.cuh"

/// Packed int4 weights times a vector in integers, exactly: how y is written, and what a warp does with 16 rows.
///
/// A piece is 128 numbers along `inner`, within which scale and offset do not change. In piece c
///   y[k] = one[c] * sum over d of 256^d * digit_d[k], four signed digits of 8 bits, error at most 2^-31 of the
///   largest, z[i] = sum over c of s[i,c] * (one[c] * sum over d of 256^d * sum over k of w[i,k] * digit_d[k] - o[i,c]
///   * sum[c]).
/// A word's eight weights are four bytes under the mask 0x0f0f0f0f and, times 16, four under 0xf0f0f0f0: as bytes they
/// need no shift, which in 16 bits took more time than all the rest. The tensor cores multiply 16 rows by the digits,
/// column 2 d and 2 d + 1 being digit d; so thread t of a quad gets the products of digit t.
namespace warpmeter::primer::int4 {

constexpr int kPiece = 128, kTileRows = 16;

template <class T>
struct DigitsOfY {
  uint4* words;    ///< (pieces, 2, digit, t): y for words 0, 1 (2, 3) of thread t's four; even weights, then odd ones
  float2* pieces;  ///< (pieces): sum, one

  __host__ __device__ static std::int64_t bytes(std::int64_t inner) {
    return (inner * 4 + inner / kPiece * static_cast<std::int64_t>(sizeof(float2)) + 127) / 128 * 128;
  }
  __device__ DigitsOfY(void* memory, std::int64_t inner)
      : words(static_cast<uint4*>(memory)), pieces(reinterpret_cast<float2*>(words + inner / 4)) {}

  /// By `threads` threads; a barrier has to follow.
  __device__ void fill(const T* y, int inner, int threads) {
    for (int word = threadIdx.x; word < inner / 8; word += threads) {  // a piece: 16 threads that stand together
      float x[8], sum = 0.0f, most = 0.0f;
      for (int i = 0; i < 8; i += kPack<T>) {
        unpack<T>(*reinterpret_cast<const uint4*>(y + word * 8 + i), reinterpret_cast<float(&)[kPack<T>]>(x[i]));
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        sum += x[i];
        most = fmaxf(most, fabsf(x[i]));
      }
      const unsigned piece_lanes = 0xffffu << (threadIdx.x & 16);
#pragma unroll
      for (int mask = 8; mask > 0; mask /= 2) {
        sum += __shfl_xor_sync(piece_lanes, sum, mask);
        most = fmaxf(most, __shfl_xor_sync(piece_lanes, most, mask));
      }
      // 2^(exponent - 126) is above the largest: as integers below 2^30, with digits from -128 to 127.
      const unsigned exponent = max(__float_as_uint(most) >> 23, 30u);
      const float up = __uint_as_float((283 - exponent) << 23);
      std::uint32_t number[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        number[i] = (static_cast<std::uint32_t>(__float2int_rn(x[i] * up)) + 0x00808080u) ^ 0x00808080u;
      }
      const int j = word % 4;  // of thread t's words
      auto* const to = reinterpret_cast<std::uint32_t*>(words + word / 16 * 32 + j / 2 * 16 + word % 16 / 4) + j % 2;
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {  // four numbers' four digits, the other way round
        const std::uint32_t low01 = __byte_perm(number[odd], number[odd + 2], 0x5140);
        const std::uint32_t low23 = __byte_perm(number[odd + 4], number[odd + 6], 0x5140);
        const std::uint32_t high01 = __byte_perm(number[odd], number[odd + 2], 0x7362);
        const std::uint32_t high23 = __byte_perm(number[odd + 4], number[odd + 6], 0x7362);
        to[odd * 2] = __byte_perm(low01, low23, 0x5410);
        to[odd * 2 + 16] = __byte_perm(low01, low23, 0x7632);
        to[odd * 2 + 32] = __byte_perm(high01, high23, 0x5410);
        to[odd * 2 + 48] = __byte_perm(high01, high23, 0x7632);
      }
      const bool finite = fabsf(sum) <= 3.4e38f;  // otherwise results are no numbers
      if (word % 16 == 0) pieces[word / 16] = {sum, __uint_as_float(finite ? (exponent - 29) << 23 : 0x7fffffffu)};
    }
  }
};

/// A warp's sums of 16 rows. Thread t of quad g has rows g and g + 8 of the products, and brings the scale and offset
/// of row g + t / 2 * 8 in the first or second (t % 2) of two pieces.
template <class T>
class TileSums {
 public:
  __device__ TileSums(const Weights<T>& a, const DigitsOfY<T>& y)
      : y_(y),
        lane_(threadIdx.x % 32),
        pieces_(static_cast<int>(a.inner / kPiece)),
        tiles_(static_cast<int>((a.rows - row_of_lane() + kTileRows - 1) / kTileRows)) {
    const auto of_group = static_cast<unsigned>(min(a.group_size, a.inner) / kPiece);
    inverse_ = ((1u << 20) + of_group - 1) / of_group;
    const std::int64_t row = min(blockIdx.x * std::int64_t{kTileRows} + row_of_lane(), a.rows - 1);
    scales_ = a.scales + row * a.groups;
    offsets_ = a.offsets + row * a.offset_words;
    scales_step_ = gridDim.x * std::int64_t{kTileRows} * a.groups;
    offsets_step_ = gridDim.x * std::int64_t{kTileRows} * a.offset_words;
  }

  /// Goes on to the rows of this block's next tile.
  __device__ void next_tile(int tile) {
    if (tile < tiles_) scales_ += scales_step_, offsets_ += offsets_step_;
  }
  /// Asks for the scales of pieces `first` and the next. take_scales() comes before the next call, so that no register
  /// is copied: a copy would wait for the load at once.
  __device__ void ask_scales(int first) {
    const auto piece = static_cast<unsigned>(min(first + lane_ % 2, pieces_ - 1));
    const auto group = static_cast<int>(piece * inverse_ >> 20);  // exact below 1024 pieces
    scale_asked_ = scales_[group];
    offsets_asked_ = offsets_[group / 8];
    shift_ = group % 8 * 4;
  }
  __device__ void take_scales(int first) {
    const int piece = first + lane_ % 2;
    const float scale = piece < pieces_ ? to_float(scale_asked_) : 0.0f;
    const float2 of_y = y_.pieces[min(piece, pieces_ - 1)];
    scale_ = scale * of_y.y;
    taken_ += scale * static_cast<float>(offsets_asked_ >> shift_ & 0xF) * of_y.x;
  }

  /// Adds the products of piece `first` + kPart; words: four of rows g and g + 8 each.
  template <int kPart>
  __device__ void add(const uint4 (&words)[2], int first) {
    constexpr float kIntegersFrom = 12582912.0f;  // 1.5 * 2^23: adding to its bits adds to the number
    constexpr int kBits = 0x4B400000;
    const uint4* const y = y_.words + min(first + kPart, pieces_ - 1) * 32 + lane_ / 8 * 4 + lane_ % 4;
    int even[4] = {kBits, kBits, kBits, kBits}, odd[4] = {kBits, kBits, kBits, kBits};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 of_y = y[i * 16];
      std::uint32_t low[4], high[4];
#pragma unroll
      for (int at = 0; at < 4; ++at) {
        const std::uint32_t word = (&words[at % 2].x)[2 * i + at / 2];
        low[at] = word & 0x0f0f0f0fu;
        high[at] = word & 0xf0f0f0f0u;
      }
      ptx::mma_m16n8k32_u8s8(even, low, of_y.x, of_y.y, even);
      ptx::mma_m16n8k32_u8s8(odd, high, of_y.z, of_y.w, odd);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum =
          fmaf(__int_as_float(odd[2 * half]) - kIntegersFrom, 0.0625f, __int_as_float(even[2 * half]) - kIntegersFrom);
      total_[half] += __shfl_sync(kAllLanes, scale_, half * 2 + kPart, 4) * sum;
    }
  }

  /// The sums of rows g and g + 8, in all of quad g; begins anew.
  __device__ float2 finish() {
    const int t = lane_ % 4;
    float sums[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sums[half] = total_[half] * __uint_as_float((127u + 8 * t) << 23) - (t / 2 == half ? taken_ : 0.0f);
      sums[half] += __shfl_xor_sync(kAllLanes, sums[half], 1);
      sums[half] += __shfl_xor_sync(kAllLanes, sums[half], 2);
      total_[half] = 0.0f;
    }
    taken_ = 0.0f;
    return {sums[0], sums[1]};
  }

 private:
  [[nodiscard]] __device__ int row_of_lane() const {
    return lane_ / 4 + lane_ % 4 / 2 * 8;
  }

  const DigitsOfY<T>& y_;
  int lane_, pieces_, tiles_;  // tiles_: those in which the lane's row is there
  unsigned inverse_;           // of the pieces of a group, times 2^20
  const T* scales_;
  const std::uint32_t* offsets_;
  std::int64_t scales_step_, offsets_step_;
  T scale_asked_;
  std::uint32_t offsets_asked_;
  int shift_;
  float scale_ = 0.0f, taken_ = 0.0f, total_[2] = {};
};

/// The tile's results from the sums of kWarps warps. The caller's barrier stands between deposit() and store(); the
/// other half of the memory is written in the meantime, so that one barrier a tile is enough.
template <int kWarps>
struct TileResults {
  float of_warps[2][kWarps][kTileRows];

  __device__ void deposit(int turn, float2 sums) {
    const int lane = threadIdx.x % 32;
    if (lane % 4 != 0) return;
    float* const to = of_warps[turn][threadIdx.x / 32] + lane / 4;
    to[0] = sums.x;
    to[8] = sums.y;
  }
  template <class T>
  __device__ void store(int turn, int tile, std::int64_t rows, T* z) const {
    const std::int64_t row = tile * std::int64_t{kTileRows} + threadIdx.x;
    if (threadIdx.x >= kTileRows || row >= rows) return;
    float sum = 0.0f;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) sum += of_warps[turn][warp][threadIdx.x];
    z[row] = from_float<T>(sum);
  }
};

}  // namespace warpmeter::primer::int4
