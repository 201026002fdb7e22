#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace warpmeter::data_parallel {

/// A parameter as data-parallel training sees it.
struct TrainedParameter {
  std::string name;
  std::int64_t count = 0;
  bool trainable = true;
  bool joined = false;       ///< its gradient must lie right behind that of the parameter before it
  bool needs_place = false;  ///< its gradient is written even where it is not trained
};

/// Where gradients lie in one array, and how it is cut into the arrays of collective calls: gradients never move.
///
/// Parameters keep their order; groups of joined ones begin on multiples of kAlignment elements. A frozen parameter has
/// a place only where it needs one, or is joined to one that is trained; it is sent along where it lies between two
/// that are.
class GradientPlan {
 public:
  static constexpr std::int64_t kAlignment = 256;

  /// One call: elements of the array, and the trained parameters in it, ascending.
  struct Range {
    std::int64_t begin = 0, count = 0;
    std::vector<std::size_t> parameters;
  };

  /// `element_bytes` of a gradient.
  GradientPlan(std::vector<TrainedParameter> parameters, std::size_t element_bytes);

  [[nodiscard]] const std::vector<TrainedParameter>& parameters() const { return parameters_; }
  /// Elements from the array's begin, by parameter; -1: no place.
  [[nodiscard]] const std::vector<std::int64_t>& places() const { return places_; }
  [[nodiscard]] std::int64_t elements() const { return elements_; }
  [[nodiscard]] std::size_t element_bytes() const { return element_bytes_; }

  // Calls that together cover every trained parameter once, those of the last parameters first: as a backward finishes
  // them.

  [[nodiscard]] std::vector<Range> one_each() const;
  [[nodiscard]] std::vector<Range> all_at_once() const;
  /// Each is as large as it can be up to `bytes`, gaps counted; a parameter larger than that has one to itself.
  [[nodiscard]] std::vector<Range> buckets(std::size_t bytes) const;

 private:
  [[nodiscard]] std::vector<Range> cut(std::size_t most_bytes) const;

  std::vector<TrainedParameter> parameters_;
  std::size_t element_bytes_;
  std::vector<std::int64_t> places_;
  std::int64_t elements_ = 0;
};

}  // namespace warpmeter::data_parallel
