#include "kernels/collectives/detail/host_communicator.hpp"

namespace warpmeter::collectives::detail {

void divide(void* data, std::int64_t count, DType dtype, int divisor) {
  const char* const source = static_cast<const char*>(data);
  char* const destination = static_cast<char*>(data);
  Reduction average{&source, 1, &destination, 1, count, dtype, ReduceOp::avg};
  average.divisor = divisor;
  reduce(average);
}

std::vector<std::int64_t> widened(const void* data, std::int64_t count) {
  std::vector<std::int64_t> wide(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < wide.size(); ++i) {
    std::int32_t value;
    std::memcpy(&value, static_cast<const char*>(data) + i * sizeof(value), sizeof(value));
    wide[i] = value;
  }
  return wide;
}

void divide_and_narrow(const std::vector<std::int64_t>& sums, int divisor, void* data) {
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const auto value = static_cast<std::int32_t>(sums[i] / divisor);
    std::memcpy(static_cast<char*>(data) + i * sizeof(value), &value, sizeof(value));
  }
}

}  // namespace warpmeter::collectives::detail
