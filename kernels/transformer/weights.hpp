#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/transformer/memory.hpp"
#include "kernels/transformer/precision.hpp"
#include "kernels/transformer/state_places.hpp"

namespace warpmeter::transformer {

/// An array of one type, or a part of it.
struct WeightArray {
  void* data = nullptr;
  std::int64_t count = 0;
  DType dtype = DType::fp32;
};

/// The values of a model's parameters: one flat array of what products read, in ParameterLayout's places, and one of
/// the masters that make them exact where the precision has some. Values on the host are fp32. What copies waits; what
/// allocates throws OutOfMemory. `memory` and `layout` are borrowed.
class Weights {
 public:
  /// Takes the memory, all zero; with `resident` none for what products read, until reside().
  Weights(Memory& memory, const ParameterLayout& layout, const PrecisionPolicy& precision, bool resident = false);
  /// What products read lies at `base`, bytes() of it, and is zero. Before anything else; null in a planning memory.
  void reside(void* base);

  /// Normal values: embedding with deviation 1 (a tied one as the linear layer that it is, too), linear layers
  /// sqrt(2 / (in + out)), norms 1.
  void initialize(std::uint64_t seed, bool tied_head);
  /// Copies one parameter in; its layout's count of values.
  void set(std::size_t index, std::span<const float> values);
  /// A parameter's exact value, its master's; what products read where that is not kept.
  [[nodiscard]] std::vector<float> value(std::size_t index) const;

  /// Gives up the masters of all other parameters.
  void keep_masters(const StatePlaces& places);

  /// Of what products read.
  [[nodiscard]] std::size_t bytes() const {
    return static_cast<std::size_t>(layout_.elements()) * size_of(precision_.activation);
  }
  /// What products read, in ParameterLayout's places.
  [[nodiscard]] const Array& array() const { return weights_; }
  [[nodiscard]] void* at(std::int64_t place) const { return weights_.at(place); }
  /// Of a parameter whose master is kept; null where the precision has none, and in a planning memory.
  [[nodiscard]] void* master(std::size_t index) const;

  /// The arrays that hold all weights, and masters where there are some.
  [[nodiscard]] std::vector<WeightArray> arrays() const;
  /// What products read of the parameters `first` to `last`, both with, and of the gaps between them.
  [[nodiscard]] WeightArray range(std::size_t first, std::size_t last) const;

 private:
  void set_on_device(const Parameter& parameter, const float* values);
  [[nodiscard]] const Parameter& parameter(std::size_t index) const { return layout_.parameters().at(index); }

  Memory& memory_;
  const ParameterLayout& layout_;
  PrecisionPolicy precision_;
  bool resident_;
  Array weights_, masters_;
  StatePlaces master_places_;
};

}  // namespace warpmeter::transformer
