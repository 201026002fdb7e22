#include "kernels/transformer/memory.hpp"

#include <numeric>
#include <optional>
#include <utility>

#include "kernels/runtime/annotate.hpp"

namespace warpmeter::transformer {

std::string_view name(MemoryKind kind) noexcept {
  constexpr std::array<std::string_view, kMemoryKinds> kNames = {"parameters",  "gradients", "optimizer",
                                                                 "activations", "logits",    "workspace"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::size_t MemoryByKind::total() const {
  return std::accumulate(bytes.begin(), bytes.end(), std::size_t{0});
}

void Memory::add(MemoryKind kind, std::size_t bytes) {
  current_[kind] += bytes;
  if (current_.total() > peak_.total()) peak_ = current_;
}

void Memory::remove(MemoryKind kind, std::size_t bytes) {
  current_[kind] -= bytes;
}

std::size_t Memory::rounded(std::size_t bytes) {
  constexpr std::size_t kRounding = 512;  // the allocator's
  return (bytes + kRounding - 1) / kRounding * kRounding;
}

Array::Array(Memory& memory, const ArrayName& name, std::int64_t count, DType dtype, MemoryKind kind)
    : count_(count), dtype_(dtype), kind_(kind) {
  const std::size_t bytes = static_cast<std::size_t>(count) * size_of(dtype);
  if (!memory.planning()) {
    // As memory snapshots call them.
    std::optional<FrameScope> operation;
    if (!name.operation.empty()) operation.emplace(name.operation, name.where);
    const FrameScope frame(name.what, name.where);
    const CategoryScope category(kind == MemoryKind::optimizer ? "optimizer state" : transformer::name(kind));
    buffer_ = Buffer(memory.context(), bytes);
    data_ = buffer_.data();
  }
  memory_ = &memory;
  accounted_ = Memory::rounded(bytes);
  memory.add(kind, accounted_);
}

Array& Array::operator=(Array&& other) noexcept {
  if (this != &other) {
    reset();
    memory_ = std::exchange(other.memory_, nullptr);
    buffer_ = std::move(other.buffer_);
    data_ = std::exchange(other.data_, nullptr);
    accounted_ = std::exchange(other.accounted_, 0);
    count_ = std::exchange(other.count_, 0);
    dtype_ = other.dtype_;
    kind_ = other.kind_;
  }
  return *this;
}

void Array::reset() {
  if (memory_ == nullptr) return;
  memory_->remove(kind_, accounted_);
  buffer_ = Buffer();
  data_ = nullptr;
  accounted_ = 0;
  memory_ = nullptr;
  count_ = 0;
}

void Array::fill_zero() {
  if (data_ == nullptr) return;
  const Context& context = memory_->context();
  fill_bytes(data_, context.device(), 0, static_cast<std::size_t>(count_) * size_of(dtype_), context.stream);
}

Charge::Charge(Memory& memory, MemoryKind kind, std::size_t bytes) : memory_(&memory), kind_(kind), bytes_(bytes) {
  memory.add(kind, bytes);
}

Charge& Charge::operator=(Charge&& other) noexcept {
  if (this != &other) {
    reset();
    memory_ = std::exchange(other.memory_, nullptr);
    kind_ = other.kind_;
    bytes_ = other.bytes_;
  }
  return *this;
}

void Charge::reset() {
  if (memory_ != nullptr) memory_->remove(kind_, bytes_);
  memory_ = nullptr;
}

}  // namespace warpmeter::transformer
