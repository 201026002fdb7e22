#include "kernels/transformer/gradients.hpp"

#include <algorithm>

#include "kernels/runtime/check.hpp"

namespace warpmeter::transformer {

Gradients::Gradients(const ParameterLayout& layout) {
  begins_.push_back(0);
  for (std::int64_t i = 0; i < layout.layers(); ++i) begins_.push_back(layout.layer(i).norm1);
  begins_.push_back(layout.final_norm());
  begins_.push_back(layout.elements());
  arrays_.resize(begins_.size() - 1);
  for (const Parameter& p : layout.parameters()) {
    const bool begins_group = std::find(begins_.begin(), begins_.end(), p.offset) != begins_.end();
    if (!begins_group && runs_.back().offset + runs_.back().count == p.offset) {
      runs_.back().count += p.count();
    } else {
      runs_.push_back({p.offset, p.count()});
    }
  }
}

std::size_t Gradients::group_of(std::int64_t place) const {
  WM_CHECK(place >= 0 && place < begins_.back(), "no parameter lies there");
  return static_cast<std::size_t>(std::upper_bound(begins_.begin(), begins_.end(), place) - begins_.begin()) - 1;
}

void Gradients::take(Memory& memory, std::size_t group, DType dtype) {
  Array& array = arrays_.at(group);
  if (array.defined()) return;
  array = Array(memory, "gradients", begins_[group + 1] - begins_[group], dtype, MemoryKind::gradients);
}

void Gradients::give_back() {
  for (Array& array : arrays_) array.reset();
}

}  // namespace warpmeter::transformer
