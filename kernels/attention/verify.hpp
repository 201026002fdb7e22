#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/attention/implementation.hpp"
#include "kernels/attention/problem.hpp"

namespace warpmeter::attention {

/// How one output compares with the fp64 reference.
struct OutputCheck {
  std::string output;         ///< "o", "lse", "dq", "dk", "dv"
  double max_error = 0;       ///< largest |value - reference| over the rows looked at
  double max_reference = 0;   ///< largest |reference| over the same rows
  double tolerance = 0;       ///< what max_error may be
  double bias = 0;            ///< sum of errors away from zero / sum of |reference|
  double bias_tolerance = 0;  ///< what |bias| may be; infinite where it is not looked at
  std::string worst;          ///< "b0 h0 row 17 col 3: got 0.5, expected 0.4"
  bool passed = false;        ///< false too for a NaN, or an infinity that the reference does not have
};

struct CheckReport {
  std::vector<OutputCheck> outputs;
  std::string note;  ///< what in the problem explains a failure, "" when nothing does
  [[nodiscard]] bool passed() const;
  [[nodiscard]] std::string failure() const;  ///< the first failing output and the note in one line, "" when passed
  [[nodiscard]] double max_error() const;     ///< the largest max_error / max_reference over the outputs
};

/// Outputs to check, in host memory; a null operand is left out.
struct HostOutputs {
  ConstOperand o;
  const float* lse = nullptr;
  ConstOperand dq, dk, dv;
};

/// Compares outputs with the fp64 formula (reference.hpp) on host copies of the inputs.
///
/// Small problems are compared in every element. Above `work_budget` multiply-adds rows are sampled: query rows (o,
/// lse, dq) in up to 64 (batch, key/value head) pairs, key rows (dk, dv) in up to 4; first, last, where the causal mask
/// begins, beside tile borders, and random ones. The sample depends on the problem and seed alone. A key row needs LSE
/// and D of every query that sees it; where those would cost more than half the budget the run's own lse and
/// D = o . do stand in for them, themselves checked in the sampled query rows (check() then needs o and lse).
///
/// Largest error allowed, with u the type's unit roundoff and m = max|reference| over the rows looked at; for lse m is
/// at least 1, for it is a logarithm and relative errors of the sum are absolute in it:
///
///     fp32          1e-5 m                 dq, dk: + 4 u c
///     tf32          1e-3 m                 dq, dk: + 4 u c
///     bf16, fp16    2 yardstick + u m      dq, dk: 2 yardstick + u max(m, c)
///                                          lse where scores are fp32: 1e-5 m, as of fp32
///
/// fp32, tf32: sums of n terms in any order err by about sqrt(n) u, so that 1e-5 and 1e-3 have room for every length in
/// use, while a term left out of one of them shows. 16-bit: the yardstick is the largest error that the formula makes
/// when its steps are rounded to that type where the implementation rounds them (reference.hpp, Rounding): a kernel
/// that keeps more in fp32 stays below it, one that rounds in other places comes near it, and the last rounding of the
/// result is on top. c is the size of what cancels in dS = P (dP - D), times scale and the largest |k| (dq) or |q|
/// (dk): where a query sees one key dq is 0 by formula, and in practice a rounding error of that size. For dk the size
/// is the root of the sum of its squares over the queries, where that is more than the largest of them: D_i comes from
/// an O that is rounded for each query anew, so a key that many queries see almost alone adds up as many independent
/// errors. For dq it is one: P is a mean over keys.
///
/// Why the yardstick depends on where scores are. An implementation that stores them has S off by u |S|: at scores of
/// 10^4 P may be anything, and nothing can be asked of it. One that has them in fp32 owes as much there as anywhere but
/// for three things, all in its yardstick:
///     - P is rounded as exp(S - m) with a maximum m that may be an old one, or the product of the true one with the
///       scale, rounded. A row that sees one key has P = 1, which the eager formula stores without an error; here it
///       is off by up to u before the division by the sum, which is not rounded. So O may be off by u m for P and u m
///       for itself, of which the eager formula has the second alone.
///     - LSE is fp32, and its rounding is a relative error of P in the backward: 2^-24 |LSE|, and as much again for
///       LSE * log2(e) and for scale * log2(e). At |LSE| = 10^4 that is 3.7 u in fp16 and 0.5 u in bf16, at 10 nothing.
///       It passes into dv and, times dS, into dq and dk. (fp32 and tf32 cannot bear it: their forward keeps the rest.)
///     - q . k is summed in fp32: exact for integers, off by some 2^-22 |q . k| otherwise.
///
/// 16-bit, beside the largest error: rounding in one direction. Errors of each row of o and dv, counted away from zero,
/// are summed over all rows; where P is rounded to nearest the sum is a random one. Allowed:
///
///     (u / 8 + 2^-24 n / 16) sum|reference| + 4 sqrt(sum over rows of the row's own sum squared)
///     scores stored: + twice the yardstick's sum;  dv where scores are fp32: + 3 * 2^-24 max|LSE| sum|reference|
///
/// n is how many terms a value is the sum of, of which tensor cores add 16 at a time and cut the sum. P cut instead of
/// rounded is 0.7 u too small on the average where it has no special value, which no bound of the largest error can
/// tell from twice the rounding to nearest. The second term is four deviations of a sum of independent rows; with few
/// rows it is larger than any bias, and nothing is claimed. (dq and dk are differences: their errors have no
/// direction.)
class Verifier {
 public:
  /// `scores`: of the implementation whose outputs will be checked. `d_o` null: forward only. The operands are host
  /// memory; they are read here only.
  Verifier(const AttentionProblem& problem, ScorePrecision scores, ConstOperand q, ConstOperand k, ConstOperand v,
           ConstOperand d_o, std::uint64_t seed, double work_budget = 4e9);
  ~Verifier();
  Verifier(Verifier&&) noexcept;
  Verifier& operator=(Verifier&&) noexcept;

  [[nodiscard]] CheckReport check(const HostOutputs& outputs) const;
  [[nodiscard]] bool sampled() const;  ///< false when every element is compared

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace warpmeter::attention
