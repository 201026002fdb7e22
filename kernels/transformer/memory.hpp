#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <source_location>
#include <string_view>

#include "kernels/runtime/context.hpp"
#include "kernels/runtime/dtype.hpp"
#include "kernels/runtime/tensor.hpp"

namespace warpmeter::transformer {

/// What a model's bytes are for.
enum class MemoryKind : std::uint8_t { parameters, gradients, optimizer, activations, logits, workspace };
inline constexpr std::size_t kMemoryKinds = 6;
[[nodiscard]] std::string_view name(MemoryKind kind) noexcept;

struct MemoryByKind {
  std::array<std::size_t, kMemoryKinds> bytes{};
  [[nodiscard]] std::size_t& operator[](MemoryKind kind) { return bytes[static_cast<std::size_t>(kind)]; }
  [[nodiscard]] std::size_t operator[](MemoryKind kind) const { return bytes[static_cast<std::size_t>(kind)]; }
  [[nodiscard]] std::size_t total() const;
};

/// Where a model's memory comes from, accounted by kind as the allocator rounds (512 B). A planning memory hands out
/// nothing and only accounts: the same code then tells what it would take.
class Memory {
 public:
  /// Throws OutOfMemory later, from Array.
  explicit Memory(const Context& context, bool planning = false) : context_(context), planning_(planning) {}
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  [[nodiscard]] const Context& context() const { return context_; }
  [[nodiscard]] bool planning() const { return planning_; }

  [[nodiscard]] const MemoryByKind& current() const { return current_; }
  /// As it was when the total was largest since reset_peak().
  [[nodiscard]] const MemoryByKind& peak() const { return peak_; }
  void reset_peak() { peak_ = current_; }

  void add(MemoryKind kind, std::size_t bytes);
  void remove(MemoryKind kind, std::size_t bytes);
  /// Something inside a library takes so much for a moment, straight from the allocator.
  void add_for_a_moment(MemoryKind kind, std::size_t bytes) {
    add(kind, bytes);
    remove(kind, bytes);
  }

  [[nodiscard]] static std::size_t rounded(std::size_t bytes);

 private:
  Context context_;
  bool planning_;
  MemoryByKind current_, peak_;
};

/// What the allocator's history calls an array: frames "q, k, v" within "QKV_MATMUL", at the place that names it.
struct ArrayName {
  std::string_view what;       ///< a literal
  std::string_view operation;  ///< that writes it first, a literal; empty: none, or `what` is its name
  std::source_location where;

  // Implicit, so that a name alone will do.
  ArrayName(const char* array, std::string_view written_by = {},
            std::source_location place = std::source_location::current())
      : what(array), operation(written_by), where(place) {}
  ArrayName(std::string_view array, std::string_view written_by = {},
            std::source_location place = std::source_location::current())
      : what(array), operation(written_by), where(place) {}
};

/// A dense array of the model; null in a planning memory. Must not outlive its Memory.
class Array {
 public:
  Array() = default;
  Array(Memory& memory, const ArrayName& name, std::int64_t count, DType dtype, MemoryKind kind);
  /// In somebody else's memory, which is not accounted; null in a planning memory.
  Array(Memory& memory, void* data, std::int64_t count, DType dtype)
      : memory_(&memory), data_(data), count_(count), dtype_(dtype) {}
  ~Array() { reset(); }
  Array(Array&& other) noexcept { *this = std::move(other); }
  Array& operator=(Array&& other) noexcept;
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  void reset();
  /// In the context's stream; nothing where it is undefined or in a planning memory.
  void fill_zero();
  [[nodiscard]] bool defined() const { return memory_ != nullptr; }
  [[nodiscard]] std::int64_t count() const { return count_; }
  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] void* data() const { return data_; }
  /// Address of an element; null in a planning memory.
  [[nodiscard]] void* at(std::int64_t index) const {
    return data_ == nullptr ? nullptr : static_cast<char*>(data_) + index * static_cast<std::int64_t>(size_of(dtype_));
  }
  template <class T>
  [[nodiscard]] T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  Memory* memory_ = nullptr;
  Buffer buffer_;
  void* data_ = nullptr;
  std::size_t accounted_ = 0;
  std::int64_t count_ = 0;
  DType dtype_ = DType::fp32;
  MemoryKind kind_ = MemoryKind::activations;
};

/// Bytes that a library holds between two calls, for the account alone.
class Charge {
 public:
  Charge() = default;
  Charge(Memory& memory, MemoryKind kind, std::size_t bytes);
  ~Charge() { reset(); }
  Charge(Charge&& other) noexcept { *this = std::move(other); }
  Charge& operator=(Charge&& other) noexcept;
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;
  void reset();

 private:
  Memory* memory_ = nullptr;
  MemoryKind kind_ = MemoryKind::activations;
  std::size_t bytes_ = 0;
};

}  // namespace warpmeter::transformer
