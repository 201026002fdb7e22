#include "kernels/data_parallel/plan.hpp"

#include <limits>
#include <utility>

#include "kernels/runtime/check.hpp"

namespace warpmeter::data_parallel {

GradientPlan::GradientPlan(std::vector<TrainedParameter> parameters, std::size_t element_bytes)
    : parameters_(std::move(parameters)), element_bytes_(element_bytes) {
  places_.assign(parameters_.size(), -1);
  for (std::size_t begin = 0; begin < parameters_.size();) {
    std::size_t end = begin + 1;
    while (end < parameters_.size() && parameters_[end].joined) ++end;
    bool placed = false;
    for (std::size_t i = begin; i < end; ++i) placed |= parameters_[i].trainable || parameters_[i].needs_place;
    if (placed) {
      elements_ = (elements_ + kAlignment - 1) / kAlignment * kAlignment;
      for (std::size_t i = begin; i < end; ++i) {
        places_[i] = elements_;
        elements_ += parameters_[i].count;
      }
    }
    begin = end;
  }
}

std::vector<GradientPlan::Range> GradientPlan::cut(std::size_t most_bytes) const {
  std::vector<Range> ranges;
  for (std::size_t i = parameters_.size(); i-- > 0;) {
    if (!parameters_[i].trainable) continue;
    const std::int64_t begin = places_[i], end = begin + parameters_[i].count;
    if (!ranges.empty()) {
      Range& last = ranges.back();
      const std::int64_t together = last.begin + last.count - begin;
      if (static_cast<std::size_t>(together) * element_bytes_ <= most_bytes) {
        last.begin = begin;
        last.count = together;
        last.parameters.insert(last.parameters.begin(), i);
        continue;
      }
    }
    ranges.push_back({begin, end - begin, {i}});
  }
  return ranges;
}

std::vector<GradientPlan::Range> GradientPlan::one_each() const {
  return cut(0);
}

std::vector<GradientPlan::Range> GradientPlan::all_at_once() const {
  return cut(std::numeric_limits<std::size_t>::max());
}

std::vector<GradientPlan::Range> GradientPlan::buckets(std::size_t bytes) const {
  WM_CHECK(bytes > 0, "a bucket holds something");
  return cut(bytes);
}

}  // namespace warpmeter::data_parallel
