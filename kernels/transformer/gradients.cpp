#include "kernels/transformer/gradients.hpp"

#include <algorithm>
#include <utility>

#include "kernels/runtime/check.hpp"

namespace warpmeter::transformer {

Gradients::Gradients(const ParameterLayout& layout, std::vector<bool> frozen) : frozen_(std::move(frozen)) {
  WM_CHECK(frozen_.empty() || frozen_.size() == layout.parameters().size(), "frozen or not, for every parameter");
  begins_.push_back(0);
  for (std::int64_t i = 0; i < layout.layers(); ++i) begins_.push_back(layout.layer(i).norm1);
  begins_.push_back(layout.final_norm());
  begins_.push_back(layout.elements());
  arrays_.resize(begins_.size() - 1);
  for (const Parameter& p : layout.parameters()) {
    offsets_.push_back(p.offset);
    counts_.push_back(p.count());
  }
}

std::size_t Gradients::group_of(std::int64_t place) const {
  WM_CHECK(place >= 0 && place < begins_.back(), "no parameter lies there");
  return static_cast<std::size_t>(std::upper_bound(begins_.begin(), begins_.end(), place) - begins_.begin()) - 1;
}

std::size_t Gradients::index_of(std::int64_t place) const {
  const auto found = std::lower_bound(offsets_.begin(), offsets_.end(), place);
  WM_CHECK(found != offsets_.end() && *found == place, "a parameter begins there");
  return static_cast<std::size_t>(found - offsets_.begin());
}

void Gradients::take(Memory& memory, std::size_t group, DType dtype) {
  Array& array = arrays_.at(group);
  if (resident() || array.defined()) return;
  array = Array(memory, "gradients", begins_[group + 1] - begins_[group], dtype, MemoryKind::gradients);
}

void Gradients::give_back() {
  for (Array& array : arrays_) array.reset();
}

void Gradients::reside(void* base, DType dtype, std::vector<std::int64_t> places) {
  WM_CHECK(places.size() == offsets_.size(), "a place for every parameter");
  give_back();
  base_ = static_cast<char*>(base);
  element_bytes_ = size_of(dtype);
  places_ = std::move(places);
}

void* Gradients::at(std::int64_t place) const {
  if (!resident()) return arrays_[group_of(place)].at(place - begin_of(place));
  const std::int64_t there = places_[index_of(place)];
  WM_CHECK(there >= 0, "the gradient has a place");
  return base_ == nullptr ? nullptr : base_ + there * static_cast<std::int64_t>(element_bytes_);
}

bool Gradients::follows(std::size_t index) const {
  if (index == 0) return false;
  if (resident()) return places_[index - 1] >= 0 && places_[index] == places_[index - 1] + counts_[index - 1];
  return offsets_[index] == offsets_[index - 1] + counts_[index - 1] &&
         group_of(offsets_[index]) == group_of(offsets_[index - 1]);
}

void Gradients::ready(std::int64_t place, StreamView stream) const {
  if (observer_ == nullptr) return;
  const std::size_t index = index_of(place);
  if (trainable(index)) observer_->gradient_ready(index, stream);
}

}  // namespace warpmeter::transformer
