#include "kernels/data_parallel/waiting.hpp"

#include <algorithm>

#include "kernels/runtime/check.hpp"

namespace warpmeter::data_parallel {

Waiting split_waiting(const std::vector<std::vector<double>>& waited) {
  WM_CHECK(!waited.empty(), "there is a rank");
  Waiting result;
  for (std::size_t step = 0; step < waited.front().size(); ++step) {
    double least = waited.front()[step], most = least;
    for (const std::vector<double>& rank : waited) {
      WM_CHECK(rank.size() == waited.front().size(), "ranks take the same steps");
      least = std::min(least, rank[step]);
      most = std::max(most, rank[step]);
    }
    result.exposed_ms.push_back(least);
    result.skew_ms.push_back(most - least);
  }
  return result;
}

}  // namespace warpmeter::data_parallel
