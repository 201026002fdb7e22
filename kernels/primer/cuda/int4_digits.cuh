#pragma once

#include "kernels/primer/cuda/int4_weights.cuh"
#include "kernels/ptx/mma_int8.cuh"

/// Packed int4 weights times a vector in integers, exactly: how y is written, and what a warp does with eight rows.
///
/// A piece is 128 numbers along `inner`, within which scale and offset do not change. In piece c
///   y[k] = one[c] * sum over d of 256^d * digit_d[k], four signed digits of 8 bits, error at most 2^-31 of the
///   largest, z[i] = sum over c of s[i,c] * one[c] * sum over d of 256^d * (sum over k of w[i,k] * digit_d[k] - o[i,c]
///   * sum over k of digit_d[k]).
/// A word's eight weights are four bytes under the mask 0x0f0f0f0f and, times 16, four under 0xf0f0f0f0: as bytes they
/// need no shift, which in 16 bits took more time than all the rest.
///
/// The tensor cores multiply 16 rows of 32 bytes by 8 columns. Of a pair of pieces, 128 bytes of each row, rows 2 r and
/// 2 r + 1 of the product are the first and the second piece of row r (8 + 2 r and 8 + 2 r + 1: of row 4 + r), so that
/// eight threads together read whole 128 bytes. The columns tell the pieces apart: 2 d is digit d of the first piece's
/// y, 2 d + 1 of the second's; of a product's two sums with digit d one counts.
namespace warpmeter::primer::int4 {

constexpr int kPiece = 128, kPairBytes = kPiece;  // of weights in a pair of pieces
constexpr int kOctet = 8;                         // rows of two products

template <class T>
struct DigitsOfY {
  uint4* words;  ///< (pairs, 2, digit, piece of the pair, t): y for words 0, 1 (2, 3) of thread t; even, then odd
  int* sums;     ///< (pairs, piece of the pair, digit)
  float* ones;   ///< (pieces)

  __host__ __device__ static std::int64_t bytes(std::int64_t inner) {
    return inner * 4 + (inner / kPiece * (4 * 4 + 4) + 127) / 128 * 128;
  }
  __device__ DigitsOfY(void* memory, std::int64_t inner)
      : words(static_cast<uint4*>(memory)),
        sums(reinterpret_cast<int*>(words + inner / 4)),
        ones(reinterpret_cast<float*>(sums + inner / kPiece * 4)) {}

  /// Fills words and ones, by `threads` threads, whole warps; a barrier has to follow, and add_up().
  __device__ void fill(const T* y, int inner, int threads) {
    constexpr int kAtOnce = 4, kPacks = 8 / kPack<T>;
    for (int first = threadIdx.x; first < inner / 8; first += kAtOnce * threads) {
      uint4 raw[kAtOnce][kPacks];
#pragma unroll
      for (int i = 0; i < kAtOnce * kPacks; ++i) {  // asked for together
        const int word = min(first + i / kPacks * threads, inner / 8 - 1);
        raw[i / kPacks][i % kPacks] = reinterpret_cast<const uint4*>(y)[word * kPacks + i % kPacks];
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i * threads < inner / 8) fill_word(raw[i], first + i * threads);
      }
    }
  }

  /// Fills the sums of a pair, by a warp.
  __device__ void add_up(int pair) const {
    const int lane = threadIdx.x % 32;
    int sum = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 of_lane = words[pair * 64 + i * 32 + lane];
#pragma unroll
      for (int k = 0; k < 4; ++k) sum = __dp4a(static_cast<int>((&of_lane.x)[k]), 0x01010101, sum);
    }
    sum += __shfl_xor_sync(kAllLanes, sum, 1);
    sum += __shfl_xor_sync(kAllLanes, sum, 2);
    if (lane % 4 == 0) sums[(pair * 2 + lane / 4 % 2) * 4 + lane / 8] = sum;
  }

 private:
  /// Of 8 numbers; a piece has 16 threads that stand together.
  __device__ void fill_word(const uint4 (&raw)[8 / kPack<T>], int word) {
    float x[8], nothing = 0.0f, most = 0.0f;
#pragma unroll
    for (int i = 0; i < 8 / kPack<T>; ++i) unpack<T>(raw[i], reinterpret_cast<float(&)[kPack<T>]>(x[i * kPack<T>]));
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      nothing += x[i] * 0.0f;
      most = fmaxf(most, fabsf(x[i]));
    }
    const unsigned piece_lanes = 0xffffu << (threadIdx.x & 16);
#pragma unroll
    for (int mask = 8; mask > 0; mask /= 2) {
      nothing += __shfl_xor_sync(piece_lanes, nothing, mask);
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
    const int piece = word / 16, t = word % 16 / 4, j = word % 4;  // j: of thread t's words
    auto* const to = reinterpret_cast<std::uint32_t*>(words + piece / 2 * 64 + j / 2 * 32 + piece % 2 * 4 + t) + j % 2;
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {  // four numbers' four digits, the other way round
      const std::uint32_t low01 = __byte_perm(number[odd], number[odd + 2], 0x5140);
      const std::uint32_t low23 = __byte_perm(number[odd + 4], number[odd + 6], 0x5140);
      const std::uint32_t high01 = __byte_perm(number[odd], number[odd + 2], 0x7362);
      const std::uint32_t high23 = __byte_perm(number[odd + 4], number[odd + 6], 0x7362);
      to[odd * 2] = __byte_perm(low01, low23, 0x5410);
      to[odd * 2 + 32] = __byte_perm(low01, low23, 0x7632);
      to[odd * 2 + 64] = __byte_perm(high01, high23, 0x5410);
      to[odd * 2 + 96] = __byte_perm(high01, high23, 0x7632);
    }
    // Where a number is infinite or none, results are none.
    if (word % 16 == 0) ones[piece] = nothing == 0.0f ? __uint_as_float((exponent - 29) << 23) : nothing;
  }
};

/// What a warp multiplies at a time, in shared memory as in global memory: kOctets octets of rows.
template <class T>
struct Rows {
  const char* words;             ///< of the warp's first pair
  int pitch;                     ///< bytes from a row to the next
  const T* scales;               ///< (rows, groups)
  const std::uint32_t* offsets;  ///< (rows, offset_words)
};

/// A warp's sums of kOctets octets of rows over kPairs pairs of pieces at a time. Thread t of quad q has digit t of
/// rows q / 2 and 4 + q / 2 of each octet, in piece q % 2 of each pair.
template <class T, int kPairs, int kOctets>
class OctetSums {
 public:
  /// What a thread needs of y for a pair.
  struct Factors {
    uint4 digits[2];
    int sum;
    float one;
    int group;
  };

  __device__ OctetSums(const Weights<T>& a, const DigitsOfY<T>& y)
      : y_(y),
        groups_(static_cast<int>(a.groups)),
        offset_words_(static_cast<int>(a.offset_words)),
        pairs_(static_cast<int>(a.inner / (2 * kPiece))) {
    const auto of_group = static_cast<unsigned>(min(a.group_size, a.inner) / kPiece);
    inverse_ = ((1u << 20) + of_group - 1) / of_group;
  }

  /// Of the pairs from `first` on; one that is not there is the last once more.
  __device__ void load(Factors (&factors)[kPairs], int first) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const int there = min(first + pair, pairs_ - 1), piece = there * 2 + lane / 4 % 2;
      factors[pair] = {{y_.words[there * 64 + lane], y_.words[there * 64 + 32 + lane]},
                       y_.sums[piece * 4 + lane % 4],
                       y_.ones[piece],
                       static_cast<int>(static_cast<unsigned>(piece) * inverse_ >> 20)};  // exact below 1024 pieces
    }
  }

  /// Adds the products of the pairs from `first` on, with a scale of 0 for one that is not there. Calls release() when
  /// it has the weights.
  template <class Release>
  __device__ void add(const Rows<T>& rows, const Factors (&factors)[kPairs], int first, Release&& release) {
    constexpr float kIntegersFrom = 12582912.0f;  // 1.5 * 2^23: adding to its bits adds to the number
    constexpr int kBits = 0x4B400000;
    const int lane = threadIdx.x % 32;
    const bool second = lane / 4 % 2 != 0;
    const char* const mine = rows.words + lane / 8 * rows.pitch + lane % 8 * 16;
    uint4 words[kPairs][2 * kOctets];
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const char* const of_pair = mine + min(pair, pairs_ - 1 - first) * kPairBytes;
#pragma unroll
      for (int i = 0; i < 2 * kOctets; ++i)
        words[pair][i] = *reinterpret_cast<const uint4*>(of_pair + i * 4 * rows.pitch);
    }
    release();
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const Factors& y = factors[pair];
#pragma unroll
      for (int octet = 0; octet < kOctets; ++octet) {
        int even[4] = {}, odd[4] = {};
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          std::uint32_t low[4], high[4];
#pragma unroll
          for (int at = 0; at < 4; ++at) {
            const std::uint32_t word = (&words[pair][2 * octet + at % 2].x)[2 * i + at / 2];
            low[at] = word & 0x0f0f0f0fu;
            high[at] = word & 0xf0f0f0f0u;
          }
          const uint4& digits = y.digits[i];
          ptx::mma_m16n8k32_u8s8(even, low, digits.x, digits.y, even);
          ptx::mma_m16n8k32_u8s8(odd, high, digits.z, digits.w, odd);
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = octet * 8 + half * 4 + lane / 8;
          const float scale = first + pair < pairs_ ? to_float(rows.scales[row * groups_ + y.group]) * y.one : 0.0f;
          const auto offset =
              static_cast<int>(rows.offsets[row * offset_words_ + y.group / 8] >> (y.group % 8 * 4) & 0xF);
          const int of_even = second ? even[2 * half + 1] : even[2 * half];
          const int of_odd = second ? odd[2 * half + 1] : odd[2 * half];
          const int sum = of_even + (of_odd >> 4) - offset * y.sum;  // below 2^20
          total_[octet * 2 + half] += scale * (__int_as_float(kBits + sum) - kIntegersFrom);
        }
      }
    }
  }

  /// Leaves the rows' sums in `to`, octet after octet `stride` elements apart; begins anew.
  __device__ void finish(float* to, int stride) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (float& total : total_) total *= __uint_as_float((127u + 8 * (lane % 4)) << 23);  // 256^t
    // Half of what two threads have goes to each, as long as there are two: the lane's bits say in the end which row.
    int which = 0;
#pragma unroll
    for (int mask = 4, left = 2 * kOctets; mask > 0; mask /= 2) {
      if (left == 1) {
        total_[0] += __shfl_xor_sync(kAllLanes, total_[0], mask);
        continue;
      }
      left /= 2;
      const bool upper = (lane & mask) != 0;
      which += upper ? left : 0;
#pragma unroll
      for (int i = 0; i < left; ++i) {
        const float given = upper ? total_[i] : total_[left + i];
        total_[i] = (upper ? total_[left + i] : total_[i]) + __shfl_xor_sync(kAllLanes, given, mask);
      }
    }
    if (lane % (4 / kOctets) == 0) to[which / 2 * stride + which % 2 * 4 + lane / 8] = total_[0];
#pragma unroll
    for (float& total : total_) total = 0.0f;
  }

 private:
  const DigitsOfY<T>& y_;
  int groups_, offset_words_, pairs_;
  unsigned inverse_;  // of the pieces of a group, times 2^20
  float total_[2 * kOctets] = {};
};

}  // namespace warpmeter::primer::int4
