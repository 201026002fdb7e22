#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace warpmeter::transformer {

/// A fixed random source of tokens that a model can learn and whose entropy is known: a Markov chain over `states`
/// tokens, spread evenly over the vocabulary, each followed by one of `successors` others with random probabilities.
/// The same seed gives the same chain.
class MarkovSource {
 public:
  MarkovSource(std::int64_t vocab, std::uint64_t seed, std::int64_t states = 64, std::int64_t successors = 4);

  /// Nats a token that nobody can predict: the least mean cross-entropy, reached by knowing the chain.
  [[nodiscard]] double entropy() const { return entropy_; }

  /// Fills `batch` sequences of `context` tokens, and what follows each of them.
  void next_batch(std::int64_t batch, std::int64_t context, std::span<std::int32_t> tokens,
                  std::span<std::int32_t> targets);

 private:
  [[nodiscard]] std::int64_t next(std::int64_t state);

  std::int64_t states_, successors_, stride_;
  std::vector<std::int64_t> followers_;  ///< states x successors
  std::vector<double> probabilities_;    ///< as many
  double entropy_ = 0;
  std::mt19937_64 engine_;
};

}  // namespace warpmeter::transformer
