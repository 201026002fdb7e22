#include "kernels/transformer/detail/host_copies.hpp"

#include "kernels/layers/elementwise.hpp"
#include "kernels/runtime/tensor.hpp"

namespace warpmeter::transformer::detail {

void to_device(const Context& context, void* to, const void* from, std::size_t bytes) {
  copy_bytes(to, context.device(), from, Device::cpu(), bytes, context.stream);
  synchronize(context.stream);
}

void to_host(const Context& context, void* to, const void* from, std::size_t bytes) {
  copy_bytes(to, Device::cpu(), from, context.device(), bytes, context.stream);
  synchronize(context.stream);
}

std::vector<float> floats_on_host(const Context& context, const void* data, DType dtype, std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  if (dtype == DType::fp32) {
    to_host(context, values.data(), data, values.size() * sizeof(float));
    return values;
  }
  const Tensor converted(context, {count}, DType::fp32);
  layers::convert(context,
                  {.count = count, .in_dtype = dtype, .out_dtype = DType::fp32, .in = data, .out = converted.data()});
  to_host(context, values.data(), converted.data(), values.size() * sizeof(float));
  return values;
}

}  // namespace warpmeter::transformer::detail
