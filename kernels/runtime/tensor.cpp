#include "kernels/runtime/tensor.hpp"

#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "kernels/runtime/check.hpp"

namespace warpmeter {

Buffer::Buffer(const Context& context, std::size_t bytes) : allocator_(context.allocator), bytes_(bytes) {
  WM_CHECK(allocator_ != nullptr, "the context has no allocator");
  WM_CHECK(allocator_->device() == context.device(),
           "allocator of " + name(allocator_->device()) + ", stream of " + name(context.device()));
  data_ = allocator_->allocate(bytes, context.stream);
}

Buffer::~Buffer() {
  if (allocator_ != nullptr) allocator_->free(data_);
}

Buffer::Buffer(Buffer&& other) noexcept
    : allocator_(std::exchange(other.allocator_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    if (allocator_ != nullptr) allocator_->free(data_);
    allocator_ = std::exchange(other.allocator_, nullptr);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

Tensor::Tensor(const Context& context, std::initializer_list<std::int64_t> shape, DType dtype)
    : Tensor(context, std::span<const std::int64_t>(shape.begin(), shape.size()), dtype) {}

Tensor::Tensor(const Context& context, std::span<const std::int64_t> shape, DType dtype)
    : shape_(shape.begin(), shape.end()), elements_(1), dtype_(dtype), device_(context.device()) {
  // A zero anywhere makes the tensor empty, however large the rest is.
  bool empty = false;
  for (const std::int64_t length : shape_) {
    WM_CHECK(length >= 0, "negative length " + std::to_string(length));
    empty = empty || length == 0;
  }
  const auto limit = std::numeric_limits<std::int64_t>::max() / static_cast<std::int64_t>(size_of(dtype));
  for (const std::int64_t length : shape_) {
    if (empty) break;
    if (length > limit / elements_) throw std::overflow_error("a tensor of more than 2^63 bytes");
    elements_ *= length;
  }
  if (empty) elements_ = 0;
  buffer_ = std::make_shared<Buffer>(context, bytes());
}

std::int64_t Tensor::size(std::size_t dimension) const {
  WM_CHECK(dimension < shape_.size(),
           "dimension " + std::to_string(dimension) + " of a tensor with " + std::to_string(shape_.size()));
  return shape_[dimension];
}

Tensor Tensor::to(const Context& context) const {
  WM_CHECK(defined(), "copy of an undefined tensor");
  // Which streams wrote the source is not known here: all of its device's work is waited for.
  if (device_.is_cuda()) synchronize(device_);
  Tensor copy(context, shape_, dtype_);
  copy_bytes(copy.data(), copy.device(), data(), device_, bytes(), context.stream);
  if (device_.is_cuda()) synchronize(device_);
  synchronize(context.stream);
  return copy;
}

void Tensor::fill_bytes(unsigned char value, StreamView stream) const {
  WM_CHECK(defined(), "fill of an undefined tensor");
  warpmeter::fill_bytes(data(), device_, value, bytes(), stream);
}

void Tensor::check_element_size(std::size_t bytes) const {
  WM_CHECK(bytes == size_of(dtype_),
           "elements of " + std::to_string(bytes) + " bytes in a tensor of " + std::string(name(dtype_)));
}

}  // namespace warpmeter
