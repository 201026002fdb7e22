#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/transformer/memory.hpp"
#include "kernels/transformer/parameter_layout.hpp"

namespace warpmeter::transformer {

/// Is told when a parameter's gradient is finished.
class GradientObserver {
 public:
  virtual ~GradientObserver() = default;
  /// The gradient of the parameter of this index is there once `stream` has done what it has so far.
  virtual void gradient_ready(std::size_t parameter, StreamView stream) = 0;
};

/// The gradients of a model. Of themselves they come in groups when the backward reaches them and go when the optimizer
/// is done with them, so that they take the place of activations: the embedding's, each layer's, and those of the final
/// norm and the head. Or they reside in one array of their owner's. Places are ParameterLayout's.
class Gradients {
 public:
  /// `frozen`: parameters without a gradient, by index; empty: none.
  explicit Gradients(const ParameterLayout& layout, std::vector<bool> frozen = {});

  /// Groups in the layout's order.
  [[nodiscard]] std::size_t embedding_group() const { return 0; }
  [[nodiscard]] std::size_t layer_group(std::int64_t layer) const { return static_cast<std::size_t>(layer) + 1; }
  [[nodiscard]] std::size_t head_group() const { return begins_.size() - 2; }

  /// Takes a group's memory, uninitialized; nothing when it is there. Throws OutOfMemory.
  void take(Memory& memory, std::size_t group, DType dtype);
  /// Gives all groups back; nothing where gradients reside.
  void give_back();

  /// From now on gradients lie at `base`, parameter i's `places[i]` elements from there; those at -1 are not wanted.
  /// Joined parameters must be neighbours there, too. `base` may be null in a planning memory.
  void reside(void* base, DType dtype, std::vector<std::int64_t> places);
  [[nodiscard]] bool resident() const { return !places_.empty(); }

  /// Address of a parameter's gradient that is there; null in a planning memory.
  [[nodiscard]] void* at(std::int64_t place) const;
  [[nodiscard]] const Array& array_of(std::int64_t place) const { return arrays_[group_of(place)]; }
  /// Of the place's group: what is to be subtracted from it within the group's array.
  [[nodiscard]] std::int64_t begin_of(std::int64_t place) const { return begins_[group_of(place)]; }
  /// Whether gradients of these parameters can be had now: between forward_backward() and the step's end.
  [[nodiscard]] bool available(std::int64_t place) const { return resident() || array_of(place).defined(); }
  /// Whether the gradient of parameter `index` follows that of the one before it without a gap, so that one pass over
  /// memory may run over both.
  [[nodiscard]] bool follows(std::size_t index) const;

  [[nodiscard]] bool trainable(std::size_t index) const { return frozen_.empty() || !frozen_[index]; }
  /// Whether the parameter at this place is to be trained.
  [[nodiscard]] bool wanted(std::int64_t place) const { return trainable(index_of(place)); }

  /// Gradients are added to what is there.
  [[nodiscard]] bool accumulating() const { return accumulating_; }
  void set_accumulating(bool accumulating) { accumulating_ = accumulating; }

  /// Null: nobody.
  void observe(GradientObserver* observer) { observer_ = observer; }
  /// Work enqueued on `stream` so far finishes the gradient of the parameter at this place.
  void ready(std::int64_t place, StreamView stream) const;

 private:
  [[nodiscard]] std::size_t group_of(std::int64_t place) const;
  [[nodiscard]] std::size_t index_of(std::int64_t place) const;

  std::vector<std::int64_t> begins_;  ///< of each group, and the end
  std::vector<Array> arrays_;
  std::vector<std::int64_t> offsets_, counts_;  ///< of the parameters
  std::vector<bool> frozen_;
  char* base_ = nullptr;
  std::size_t element_bytes_ = 0;
  std::vector<std::int64_t> places_;
  GradientObserver* observer_ = nullptr;
  bool accumulating_ = false;
};

}  // namespace warpmeter::transformer
