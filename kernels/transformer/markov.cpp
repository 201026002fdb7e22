#include "kernels/transformer/markov.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/runtime/check.hpp"

namespace warpmeter::transformer {

namespace {

/// In [0, 1), the same on every standard library.
double uniform(std::mt19937_64& engine) {
  return static_cast<double>(engine() >> 11) * 0x1p-53;
}

std::size_t at(std::int64_t index) {
  return static_cast<std::size_t>(index);
}

}  // namespace

MarkovSource::MarkovSource(std::int64_t vocab, std::uint64_t seed, std::int64_t states, std::int64_t successors)
    : states_(std::min(states, vocab)), successors_(std::min(successors, states_)), stride_(vocab / states_) {
  WM_CHECK(vocab >= 1 && states >= 1 && successors >= 1, "a source needs tokens");
  engine_.seed(seed);
  std::vector<std::int64_t> order(at(states_));
  for (std::int64_t state = 0; state < states_; ++state) {
    // The first follower is the next state, so that every state is reached from every other.
    std::iota(order.begin(), order.end(), 0);
    std::swap(order[0], order[at((state + 1) % states_)]);
    for (std::int64_t i = 1; i < successors_; ++i) {
      const auto other = i + static_cast<std::int64_t>(uniform(engine_) * static_cast<double>(states_ - i));
      std::swap(order[at(i)], order[at(other)]);
    }
    double sum = 0;
    for (std::int64_t i = 0; i < successors_; ++i) {
      followers_.push_back(order[at(i)]);
      probabilities_.push_back(0.1 + uniform(engine_));
      sum += probabilities_.back();
    }
    for (std::int64_t i = 0; i < successors_; ++i) probabilities_[at(state * successors_ + i)] /= sum;
  }

  // How often each state comes: the chain applied until nothing moves; halves are mixed in against cycles.
  std::vector<double> often(at(states_), 1.0 / static_cast<double>(states_));
  for (int round = 0; round < 100'000; ++round) {
    std::vector<double> after(at(states_), 0.0);
    for (std::size_t i = 0; i < followers_.size(); ++i) {
      after[at(followers_[i])] += often[i / at(successors_)] * probabilities_[i];
    }
    double moved = 0;
    for (std::size_t s = 0; s < often.size(); ++s) {
      const double mixed = 0.5 * (often[s] + after[s]);
      moved += std::abs(mixed - often[s]);
      often[s] = mixed;
    }
    if (moved < 1e-14) break;
  }
  for (std::size_t i = 0; i < followers_.size(); ++i) {
    entropy_ -= often[i / at(successors_)] * probabilities_[i] * std::log(probabilities_[i]);
  }
}

std::int64_t MarkovSource::next(std::int64_t state) {
  double rest = uniform(engine_);
  for (std::int64_t i = 0; i + 1 < successors_; ++i) {
    rest -= probabilities_[at(state * successors_ + i)];
    if (rest < 0) return followers_[at(state * successors_ + i)];
  }
  return followers_[at(state * successors_ + successors_ - 1)];
}

void MarkovSource::next_batch(std::int64_t batch, std::int64_t context, std::span<std::int32_t> tokens,
                              std::span<std::int32_t> targets) {
  WM_CHECK(tokens.size() == at(batch * context) && targets.size() == tokens.size(),
           "a batch has batch * context places");
  for (std::int64_t sequence = 0; sequence < batch; ++sequence) {
    auto state = static_cast<std::int64_t>(uniform(engine_) * static_cast<double>(states_));
    for (int i = 0; i < 16; ++i) state = next(state);  // forgets where it began
    for (std::int64_t t = 0; t < context; ++t) {
      const std::int64_t follower = next(state);
      tokens[at(sequence * context + t)] = static_cast<std::int32_t>(state * stride_);
      targets[at(sequence * context + t)] = static_cast<std::int32_t>(follower * stride_);
      state = follower;
    }
  }
}

}  // namespace warpmeter::transformer
