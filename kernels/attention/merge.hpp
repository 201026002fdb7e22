#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace warpmeter::attention {

/// Joining the results of attention over disjoint parts of the keys.
///
/// A query's scores s_j = scale * q . k_j, j over all keys J, make
///
///     M = max_j s_j,  L = sum_j exp(s_j - M),  O = sum_j exp(s_j - M) v_j / L,  LSE = M + ln L.
///
/// Of a part I of the keys a stream keeps m = max s_j, l = sum exp(s_j - m), o = sum exp(s_j - m) v_j over j in I,
/// or m = -inf, l = 0, o = 0 where no key of I is seen.
///
/// Lemma. For disjoint I and I' with m* = max(m, m'):
///
///     l* = e^(m - m*) l + e^(m' - m*) l',   o* = e^(m - m*) o + e^(m' - m*) o'
///
/// are the (l, o) of the union, as e^(m - m*) e^(s_j - m) = e^(s_j - m*) for every j in I, and alike in I'. The maximum
/// of the union is m*. So the operation is the union of parts whatever the values, hence associative and commutative:
/// any tree over any number of parts, in any order, ends at (M, L, L O), and O = o / l, LSE = m + ln l. A part that
/// saw nothing is the neutral element (e^-inf = 0; two such parts stay one: their factor is taken as 0).
///
/// tree         the lemma by pairs: neighbours at distance 1, 2, 4, ... meet, whatever is left over waits.
///              (On CUDA m and l climb the tree and each part's factors are multiplied up on its way; O is then the
///              sum of the parts by these weights: the same numbers, o read once.)
///
/// lse          every part first gives O_i = o_i / l_i and S_i = m_i + ln l_i. Then in two steps
///
///                  S = ln sum_i e^(S_i),   O = sum_i e^(S_i - S) O_i.
///
///              Equal, as e^(S_i) = e^(m_i) l_i = sum_{j in I_i} e^(s_j): so S = ln sum_j e^(s_j) = LSE, and
///              e^(S_i - S) O_i = e^(m_i) l_i (o_i / l_i) / e^S = e^(m_i - LSE) o_i = sum_{j in I_i} e^(s_j - LSE) v_j,
///              whose sum over i is O. In numbers S_i is kept as two floats, sum and rest: at |S| = 10^4 one alone is
///              good to 10^-3, and so would be the weights.
///
/// two_pass     every *block* of keys keeps its own (m_b, l_b, o_b), nothing is rescaled on the way. Pass one takes
///              M = max m_b; pass two, with w_b = e^(m_b - M),
///
///                  L = sum_b w_b l_b,   O = sum_b w_b o_b / L.
///
///              Equal: the lemma with M in m*'s place for all blocks at once.
///
/// sequential   one stream walks over all keys: the lemma with one block after the other as I'. Nothing is left to
///              merge but the division.
///
/// Every sum is taken in an order that depends on the number of parts alone: the same bits on every run.
/// Sources: M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax", 2018 (the lemma for l); T. Dao et
/// al., "Flash-Decoding for long-context inference", 2023 (the LSE form).
enum class Merge : std::uint8_t { tree, lse, two_pass, sequential };

inline constexpr std::array<std::string_view, 4> kMergeNames = {"tree", "lse", "two_pass", "sequential"};
[[nodiscard]] constexpr std::string_view name(Merge merge) noexcept {
  return kMergeNames[static_cast<std::size_t>(merge)];
}
[[nodiscard]] std::optional<Merge> parse_merge(std::string_view text) noexcept;

/// Partial results of `rows` queries over `parts` parts of their keys: row r of part p has its maximum in
/// m[p * row_stride + r], its sum in l there, its o in o[p * part_stride + r * column_stride + c].
/// `m` is of unscaled scores: differences of those are exact where those of rounded products with the scale are not.
struct Partials {
  float* o = nullptr;
  float* m = nullptr;
  float* l = nullptr;
  std::int64_t parts = 0;
  std::int64_t rows = 0;
  std::int64_t head_dim = 0;
  std::int64_t part_stride = 0;    ///< of o, in floats
  std::int64_t column_stride = 0;  ///< of o: from one row to the next
  std::int64_t row_stride = 0;     ///< of m and l: from one part to the next
  float scale = 1;                 ///< score = scale * what m is of
};

/// Merges on the CPU: O of row r in o[r * o_stride + c], fp32; LSE in lse[r]. O = 0 and LSE = -inf where no part saw
/// anything. Uses the partials up. A sequential merge takes one part (WM_CHECK).
void merge_cpu(Merge merge, const Partials& partials, float* o, std::int64_t o_stride, float* lse);

}  // namespace warpmeter::attention
