#include "kernels/data_parallel/detail/toy_elements.hpp"

namespace warpmeter::data_parallel::cpu {

namespace {

template <class Arguments>
void run_all(const Arguments& arguments) {
  for (std::int64_t i = 0; i < detail::elements(arguments); ++i) detail::element(arguments, i);
}

}  // namespace

void run(const Context&, const ToyLinear& arguments) {
  run_all(arguments);
}
void run(const Context&, const ToyLinearWeightGradient& arguments) {
  run_all(arguments);
}
void run(const Context&, const ToyLinearInputGradient& arguments) {
  run_all(arguments);
}
void run(const Context&, const ToyLoss& arguments) {
  detail::whole(arguments);
}

}  // namespace warpmeter::data_parallel::cpu
