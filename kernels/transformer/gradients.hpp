#pragma once

#include <cstdint>
#include <vector>

#include "kernels/transformer/memory.hpp"
#include "kernels/transformer/parameter_layout.hpp"

namespace warpmeter::transformer {

/// The gradients of a model, in groups that come when the backward reaches them and go when the optimizer is done with
/// them, so that they take the place of activations: the embedding's, each layer's, and those of the final norm and the
/// head. Places are ParameterLayout's.
class Gradients {
 public:
  /// A run of parameters without gaps between.
  struct Run {
    std::int64_t offset = 0, count = 0;
  };

  explicit Gradients(const ParameterLayout& layout);

  /// Groups in the layout's order.
  [[nodiscard]] std::size_t embedding_group() const { return 0; }
  [[nodiscard]] std::size_t layer_group(std::int64_t layer) const { return static_cast<std::size_t>(layer) + 1; }
  [[nodiscard]] std::size_t head_group() const { return begins_.size() - 2; }

  /// Takes a group's memory, uninitialized; nothing when it is there. Throws OutOfMemory.
  void take(Memory& memory, std::size_t group, DType dtype);
  void give_back();

  /// Address of a place whose group is there; null in a planning memory.
  [[nodiscard]] void* at(std::int64_t place) const { return arrays_[group_of(place)].at(place - begin_of(place)); }
  [[nodiscard]] const Array& array_of(std::int64_t place) const { return arrays_[group_of(place)]; }
  /// Of the place's group: what is to be subtracted from it within the group's array.
  [[nodiscard]] std::int64_t begin_of(std::int64_t place) const { return begins_[group_of(place)]; }
  /// Parameters next to one another within a group together: what one pass over memory may run over.
  [[nodiscard]] const std::vector<Run>& runs() const { return runs_; }

 private:
  [[nodiscard]] std::size_t group_of(std::int64_t place) const;

  std::vector<std::int64_t> begins_;  ///< of each group, and the end
  std::vector<Array> arrays_;
  std::vector<Run> runs_;
};

}  // namespace warpmeter::transformer
