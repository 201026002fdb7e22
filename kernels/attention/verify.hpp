#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/attention/problem.hpp"

namespace warpmeter::attention {

/// How one output compares with the fp64 reference.
struct OutputCheck {
  std::string output;           ///< "o", "lse", "dq", "dk", "dv"
  double max_error = 0;         ///< largest |value - reference| over the rows looked at
  double max_reference = 0;     ///< largest |reference| over the same rows
  double tolerance = 0;         ///< what max_error may be
  std::string worst;            ///< "b0 h0 row 17 col 3: got 0.5, expected 0.4"
  bool passed = false;          ///< false too for a NaN, or an infinity that the reference does not have
};

struct CheckReport {
  std::vector<OutputCheck> outputs;
  [[nodiscard]] bool passed() const;
  [[nodiscard]] std::string failure() const;  ///< the first failing output in one line, "" when passed
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
/// Small problems are compared in every element. Above `work_budget` multiply-adds rows are sampled: first, last, tile
/// borders and random ones, in a few (batch, key/value head) pairs; the sample depends on the problem and seed alone.
///
/// Tolerances (largest error): fp32 1e-5 and tf32 1e-3 of max|reference|; 16-bit types twice the error that the naive
/// formula makes when every step is rounded to that type, plus one rounding of max|reference|. LSE is fp32 whatever the
/// type and is held to its inputs' rule.
class Verifier {
 public:
  /// `d_o` null: forward only. The operands are host memory that lives as long as the verifier.
  Verifier(const AttentionProblem& problem, ConstOperand q, ConstOperand k, ConstOperand v, ConstOperand d_o,
           std::uint64_t seed, double work_budget = 4e9);
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
