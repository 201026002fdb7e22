#pragma once

#include <map>
#include <memory>
#include <string>

#include "kernels/attention/implementation.hpp"
#include "kernels/attention/verify.hpp"
#include "tools/attn_bench/configuration.hpp"
#include "tools/harness/sweep.hpp"

namespace warpmeter::attn_bench {

/// References of the problems met so far: implementations of the same problem that hold scores alike share one. Inputs
/// are a function of the problem and the seed, so a reference serves them all.
class ReferenceCache {
 public:
  /// `inputs` is called only when the reference is not there yet; it gives host operands q, k, v and d_o (null d_o:
  /// forward only) that live until it returns.
  struct Inputs {
    attention::ConstOperand q, k, v, d_o;
  };
  template <class MakeInputs>
  const attention::Verifier& get(const attention::AttentionProblem& problem, attention::ScorePrecision scores,
                                 bool backward, std::uint64_t seed, MakeInputs&& make_inputs) {
    const bool stored = is_16bit(problem.dtype) && scores == attention::ScorePrecision::storage;  // else all the same
    const std::string key =
        describe(problem) + (stored ? " stored" : "") + (backward ? " backward " : " forward ") + std::to_string(seed);
    auto found = verifiers_.find(key);
    if (found == verifiers_.end()) {
      const Inputs inputs = make_inputs();
      found =
          verifiers_.emplace(key, attention::Verifier(problem, scores, inputs.q, inputs.k, inputs.v, inputs.d_o, seed))
              .first;
    }
    return found->second;
  }

 private:
  std::map<std::string, attention::Verifier> verifiers_;
};

/// Names of a row's configuration fields.
[[nodiscard]] std::vector<std::string> attention_row_keys();

/// Measures one configuration as the notes do: forwards timed, memory sampled before the backward, backwards timed, the
/// peaks of both phases apart; every result checked before its time is taken.
class AttentionCase : public harness::Case {
 public:
  /// `implementation` null: this build or device has none of that name.
  AttentionCase(Configuration configuration, Device device, std::shared_ptr<ReferenceCache> references);

  [[nodiscard]] reports::Object configuration() const override;
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> option_values() const override;
  [[nodiscard]] std::optional<std::string> unsupported() const override;
  [[nodiscard]] harness::Prediction predict() const override;
  void run(harness::Session& session, reports::Row& row) override;

 private:
  Configuration configuration_;
  Device device_;
  const attention::Implementation* implementation_;
  std::shared_ptr<ReferenceCache> references_;
};

}  // namespace warpmeter::attn_bench
