#include "kernels/primer/kernel.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/runtime/check.hpp"

namespace warpmeter::primer {
namespace {

constexpr Size kAllSizes[kSizes] = {Size::batch, Size::rows,        Size::cols,
                                    Size::inner, Size::kernel_size, Size::group_size};

double widened_fp16(std::uint16_t bits) {
  const int exponent = bits >> 10 & 0x1F;
  const double mantissa = bits & 0x3FF;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 31) return mantissa == 0 ? sign * HUGE_VAL : std::nan("");
  return sign * (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25));
}

}  // namespace

std::string_view name(Size size) noexcept {
  switch (size) {
    case Size::batch:
      return "batch";
    case Size::rows:
      return "rows";
    case Size::cols:
      return "cols";
    case Size::inner:
      return "inner";
    case Size::kernel_size:
      return "kernel_size";
    case Size::group_size:
      return "group_size";
  }
  return "";
}

namespace {

std::int64_t Problem::*member(Size which) noexcept {
  switch (which) {
    case Size::batch:
      return &Problem::batch;
    case Size::rows:
      return &Problem::rows;
    case Size::cols:
      return &Problem::cols;
    case Size::inner:
      return &Problem::inner;
    case Size::kernel_size:
      return &Problem::kernel_size;
    case Size::group_size:
      break;
  }
  return &Problem::group_size;
}

}  // namespace

std::int64_t Problem::size(Size which) const noexcept {
  return this->*member(which);
}

void Problem::set(Size which, std::int64_t value) noexcept {
  this->*member(which) = value;
}

std::int64_t TensorSpec::elements() const noexcept {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

double HostTensor::operator[](std::int64_t index) const {
  switch (dtype_) {
    case DType::bf16: {
      const std::uint32_t bits = std::uint32_t{static_cast<const std::uint16_t*>(data_)[index]} << 16;
      return std::bit_cast<float>(bits);
    }
    case DType::fp16:
      return widened_fp16(static_cast<const std::uint16_t*>(data_)[index]);
    default:
      return static_cast<const float*>(data_)[index];
  }
}

int HostTensor::nibble(std::int64_t index) const {
  return static_cast<int>(static_cast<const std::uint32_t*>(data_)[index / 8] >> (4 * (index % 8)) & 0xF);
}

bool Kernel::has(Size size) const noexcept {
  return std::find(sizes.begin(), sizes.end(), size) != sizes.end();
}

double Kernel::bytes(const Problem& problem) const {
  std::size_t total = 0;
  for (const TensorSpecs& specs : {inputs(problem), outputs(problem)}) {
    for (const TensorSpec& spec : specs) total += spec.bytes();
  }
  return static_cast<double>(total);
}

ComputePath Kernel::compute_path(const Problem& problem) const noexcept {
  return matrix_product && is_16bit(problem.dtype) ? ComputePath::half : ComputePath::fp32;
}

std::string invalid_reason(const Kernel& kernel, const Problem& problem) {
  // Whatever a kernel makes of its sizes, no tensor has more elements than all of them and 8 make.
  double product = 8;
  for (const Size size : kAllSizes) {
    if (!kernel.has(size)) continue;
    const std::int64_t value = problem.size(size);
    if (value < 1) return std::string(name(size)) + " " + std::to_string(value) + " is below 1";
    product *= static_cast<double>(value);
  }
  if (product > 0x1p60) return "more elements than can be counted";
  return kernel.invalid == nullptr ? "" : kernel.invalid(problem);
}

std::string describe(const Kernel& kernel, const Problem& problem) {
  std::string text;
  for (const Size size : kernel.sizes) {
    text += std::string(name(size)) + " " + std::to_string(problem.size(size)) + ", ";
  }
  return text + std::string(name(problem.dtype));
}

void run(const Kernel& kernel, const Problem& problem, const Arguments& arguments, StreamView stream) {
  const std::string reason = invalid_reason(kernel, problem);
  WM_CHECK(reason.empty(), std::string(kernel.name) + ": " + reason);
  WM_CHECK(problem.dtype == DType::fp32 || is_16bit(problem.dtype),
           std::string(kernel.name) + " in " + std::string(name(problem.dtype)));
  if (stream.device.is_cuda()) {
    WM_CHECK(kernel.cuda != nullptr, std::string(kernel.name) + " is not built for CUDA");
    kernel.cuda(problem, arguments, stream);
  } else {
    kernel.cpu(problem, arguments);
  }
}

}  // namespace warpmeter::primer
