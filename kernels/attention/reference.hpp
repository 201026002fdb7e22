#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/attention/implementation.hpp"
#include "kernels/attention/problem.hpp"

namespace warpmeter::attention {

/// The formula that every implementation is held to, in fp64, for one (batch, key/value head) and the query heads
/// that share it. With i over queries, j over the keys that i sees, and sums over head_dim in the products:
///
///     S_ij = scale * q_i . k_j        LSE_i = ln(sum_j exp(S_ij))      P_ij = exp(S_ij - LSE_i)
///     o_i  = sum_j P_ij v_j
///     dP_ij = do_i . v_j              D_i = sum_j P_ij dP_ij           dS_ij = P_ij (dP_ij - D_i)
///     dq_i = scale * sum_j dS_ij k_j
///     dk_j = scale * sum_i dS_ij q_i  dv_j = sum_i P_ij do_i           (over all queries of all heads that see j)
///
/// A query that sees nothing has o = 0, LSE = -inf, dq = 0; a key that nobody sees has dk = dv = 0.

/// The type that steps are rounded to. The rounded form tells how large an error is to be expected of that type; which
/// steps depends on where an implementation has its scores (ReferenceRequest::scores).
///
/// storage: as an eager framework stores them: q . k, its product with the scale, P, o, dP, dS, its product with the
///     scale, dq, dk, dv; sums inside a step stay fp64.
/// fp32: what fp32 arithmetic between the products leaves.
///     q . k      sums of 16 products, added up in fp32 and cut, as tensor cores do.
///     P          rounded (1 + u) P / (1 + u), with u the unit roundoff: the numbers that are rounded are
///                exp(S - m) with whatever m a row had as its maximum, so even a P of 1 may lie between two neighbours.
///     P again    in the backward exp(S - LSE + 1.5 * 2^-24 |LSE|), then rounded. In fp32 LSE, LSE * log2(e) and
///                scale * log2(e) are each off by up to 2^-24 of their size, and so is the exponent near LSE; half of
///                their sum, since a yardstick is doubled (verify.hpp). All in one direction: the last is, over all
///                rows.
///     o, dS, dq, dk, dv rounded; dP not.
enum class Rounding : std::uint8_t { none, bf16, fp16 };

/// Host memory in the problem's storage type; `d_o` null when no gradient is wanted.
struct ReferenceInputs {
  ConstOperand q, k, v, d_o;
};

/// Rows wanted of one (batch, key/value head). Keys need every query that sees them, so they cost the most.
struct ReferenceRequest {
  std::int64_t batch = 0;
  std::int64_t kv_head = 0;
  std::span<const std::int64_t> queries;  ///< of o, lse and dq, ascending, in every query head of the group
  std::span<const std::int64_t> keys;     ///< of dk and dv, ascending; none without gradients
  bool backward = false;
  Rounding rounding = Rounding::none;
  ScorePrecision scores = ScorePrecision::fp32;  ///< what is rounded; of no effect without rounding
  /// LSE and D of all queries, (group_size, seq_len), when known from elsewhere: the keys then cost only themselves.
  const double* known_lse = nullptr;
  const double* known_d = nullptr;
};

/// The rows in the request's order, in the workspace. A group's query heads follow one another.
struct ReferenceResult {
  std::span<double> o, dq;   ///< (group_size, queries, head_dim); dq empty without backward
  std::span<double> lse;     ///< (group_size, queries)
  std::span<double> dk, dv;  ///< (keys, head_dim)
  /// Largest P_ij (|dP_ij| + |o_i * do_i|_2) of the query rows: what dS is the difference of. Where gradients cancel to
  /// nearly nothing, rounding errors are of this size, not of the result's.
  double largest_term = 0;
  /// Largest root of sum_i (P_ij (|dP_ij| + |D_i|))^2 of the key rows j, i over the queries of the whole group: dK_j
  /// adds up one rounding error for each query, and independent errors add as the root of their squares.
  double largest_key_term = 0;
  double largest_product = 0;  ///< largest |q . k|, not scaled, of the query rows
};

/// Doubles that evaluate_reference() needs as workspace.
[[nodiscard]] std::size_t reference_workspace(const AttentionProblem& problem, const ReferenceRequest& request);

/// Computes the rows, on all cores.
[[nodiscard]] ReferenceResult evaluate_reference(const AttentionProblem& problem, const ReferenceInputs& inputs,
                                                 const ReferenceRequest& request, double* workspace);

/// Multiply-adds (an exponential counted as 16) for one query row of one group, one key row, and LSE and D of all
/// queries, averaged over rows. For budgets.
struct ReferenceCosts {
  double query_row = 0, key_row = 0, statistics = 0;
};
[[nodiscard]] ReferenceCosts reference_costs(const AttentionProblem& problem, bool backward);

/// The same formula as an implementation to select: for small problems, where speed does not matter.
const Implementation& reference_cpu();

}  // namespace warpmeter::attention
