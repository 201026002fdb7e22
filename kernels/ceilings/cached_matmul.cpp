#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "kernels/ceilings/detail/cached_matmul.hpp"
#include "kernels/ceilings/detail/harness_buffer.hpp"
#include "kernels/ceilings/detail/random_value.hpp"
#include "kernels/runtime/check.hpp"
#include "kernels/runtime/parallel.hpp"

namespace warpmeter::ceilings::detail {
namespace {

#if defined(__x86_64__)
/// Bit `bit` of CPUID leaf 7's register `index` (eax, ebx, ecx, edx).
bool has_feature(unsigned subleaf, int index, unsigned bit) {
  unsigned registers[4] = {};
  if (__get_cpuid_count(7, subleaf, &registers[0], &registers[1], &registers[2], &registers[3]) == 0) return false;
  return (registers[index] >> bit & 1u) != 0;
}

/// AMX is there and Linux grants this process the tile registers, which it must ask for.
bool has_amx_bf16() {
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return has_feature(0, 3, 22) && has_feature(0, 3, 24) && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}
#endif

std::uint16_t to_bf16(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);  // to nearest, ties to even
}

/// A thread's operands, in memory that it touched first.
class Operands {
 public:
  Operands(CachingAllocator& allocator, const CachedMatmulKernel& kernel)
      : kernel_(kernel), buffer_(allocator, a_bytes() + b_bytes() + c_bytes()) {}

  [[nodiscard]] void* a() const { return buffer_.data(); }
  [[nodiscard]] void* b() const { return static_cast<char*>(buffer_.data()) + a_bytes(); }
  [[nodiscard]] float* c() const {
    return reinterpret_cast<float*>(static_cast<char*>(buffer_.data()) + a_bytes() + b_bytes());
  }
  void fill(std::uint64_t seed) const {
    fill_random(a(), kernel_.rows * kernel_.depth, seed);
    fill_random(b(), kernel_.depth * kernel_.columns, seed + static_cast<std::uint64_t>(kernel_.rows * kernel_.depth));
    std::memset(c(), 0, c_bytes());
  }

 private:
  [[nodiscard]] std::size_t a_bytes() const { return rounded(kernel_.rows * kernel_.depth * element_bytes()); }
  [[nodiscard]] std::size_t b_bytes() const { return rounded(kernel_.depth * kernel_.columns * element_bytes()); }
  [[nodiscard]] std::size_t c_bytes() const { return rounded(kernel_.rows * kernel_.columns * 4); }
  [[nodiscard]] std::int64_t element_bytes() const { return kernel_.is_bf16 ? 2 : 4; }
  static std::size_t rounded(std::int64_t bytes) { return (static_cast<std::size_t>(bytes) + 63) / 64 * 64; }

  void fill_random(void* data, std::int64_t count, std::uint64_t seed) const {
    for (std::int64_t i = 0; i < count; ++i) {
      const float value = random_value(seed + static_cast<std::uint64_t>(i));
      if (kernel_.is_bf16) {
        static_cast<std::uint16_t*>(data)[i] = to_bf16(value);
      } else {
        static_cast<float*>(data)[i] = value;
      }
    }
  }

  const CachedMatmulKernel& kernel_;
  HarnessBuffer buffer_;
};

class CachedMatmul final : public CachedMatmulWorkload {
 public:
  CachedMatmul(const Context& context, const CachedMatmulKernel& kernel, double call_flops)
      : kernel_(kernel), products_(std::max<std::int64_t>(1, std::llround(call_flops / (kPieces * kernel.flops())))) {
    const int threads = num_threads();
    operands_.reserve(static_cast<std::size_t>(threads));
    for (int i = 0; i < threads; ++i) operands_.emplace_back(*context.allocator, kernel);
    parallel_workers([&](int worker, int) {
      constexpr std::uint64_t kApart = std::uint64_t{1} << 32;
      operands_[static_cast<std::size_t>(worker)].fill(static_cast<std::uint64_t>(worker) * kApart);
    });
  }

  [[nodiscard]] double amount() const override { return static_cast<double>(pieces() * products_) * kernel_.flops(); }
  [[nodiscard]] int variants() const override { return 1; }
  [[nodiscard]] std::string variant_name(int) const override {
    return std::string("operands in cache, ") + kernel_.isa;
  }
  [[nodiscard]] int workers() const override { return static_cast<int>(operands_.size()); }
  [[nodiscard]] Tile tile(int worker) const override {
    const Operands& operands = operands_.at(static_cast<std::size_t>(worker));
    Tile tile{kernel_.rows,
              kernel_.columns,
              kernel_.depth,
              kernel_.passes,
              kernel_.is_bf16 ? DType::bf16 : DType::fp32,
              kernel_.is_bf16 ? 2 : 1,
              operands.a(),
              operands.b(),
              operands.c()};
    return tile;
  }

  void enqueue(int) override {
    WM_CHECK(num_threads() == workers(), "the thread count changed since the operands were made");
    parallel_for(pieces(), [&](std::int64_t, int worker) {
      const Operands& operands = operands_[static_cast<std::size_t>(worker)];
      kernel_.multiply(operands.a(), operands.b(), operands.c(), products_);
    });
  }

 private:
  /// A thread's share is cut into pieces that are dealt out as threads come free: cores need not be equally fast.
  static constexpr std::int64_t kPieces = 64;
  [[nodiscard]] std::int64_t pieces() const { return kPieces * static_cast<std::int64_t>(operands_.size()); }

  const CachedMatmulKernel& kernel_;
  std::int64_t products_;  ///< in a piece
  std::vector<Operands> operands_;
};

const CachedMatmulKernel* kernel_of(CpuIsa isa) {
#if defined(__x86_64__)
  if (isa == CpuIsa::avx512) return &avx512::kCachedMatmul;
  if (isa == CpuIsa::avx2) return &avx2::kCachedMatmul;
#endif
  (void)isa;
  return &generic::kCachedMatmul;
}

const CachedMatmulKernel* kernel_of(Bf16Products products) {
#if defined(__x86_64__)
  if (products == Bf16Products::amx_bf16) return &amx_bf16::kCachedMatmul;
  if (products == Bf16Products::avx512_bf16) return &avx512_bf16::kCachedMatmul;
#endif
  (void)products;
  return nullptr;
}

}  // namespace

Bf16Products machine_bf16_products() noexcept {
#if defined(__x86_64__)
  if (machine_cpu_isa() == CpuIsa::avx512 && has_feature(1, 0, 5)) {
    return has_amx_bf16() ? Bf16Products::amx_bf16 : Bf16Products::avx512_bf16;
  }
#endif
  return Bf16Products::none;
}

Bf16Products choose_bf16_products(Bf16Products machine, CpuIsa level, const char* wanted) noexcept {
  const std::string_view word = wanted == nullptr ? "" : wanted;
  if (level != CpuIsa::avx512 || word == "avx512") return Bf16Products::none;
  return word == "avx512_bf16" ? std::min(machine, Bf16Products::avx512_bf16) : machine;
}

const CachedMatmulKernel* choose_cached_matmul(ComputePath path) noexcept {
  static const CachedMatmulKernel* const fp32 = kernel_of(cpu_isa());
  static const CachedMatmulKernel* const bf16 =
      kernel_of(choose_bf16_products(machine_bf16_products(), cpu_isa(), std::getenv("WARPMETER_CPU_ISA")));
  return path == ComputePath::fp32 ? fp32 : path == ComputePath::half ? bf16 : nullptr;
}

const CachedMatmulKernel* find_cached_matmul(std::string_view isa) noexcept {
  for (const CpuIsa level : {CpuIsa::generic, CpuIsa::avx2, CpuIsa::avx512}) {
    if (isa == name(level) && level <= machine_cpu_isa()) return kernel_of(level);
  }
  for (const Bf16Products products : {Bf16Products::avx512_bf16, Bf16Products::amx_bf16}) {
    const CachedMatmulKernel* const kernel = kernel_of(products);
    if (kernel != nullptr && isa == kernel->isa && products <= machine_bf16_products()) return kernel;
  }
  return nullptr;
}

std::unique_ptr<CachedMatmulWorkload> make_cached_matmul(const Context& context, const CachedMatmulKernel& kernel,
                                                         double call_flops) {
  return std::make_unique<CachedMatmul>(context, kernel, call_flops);
}

}  // namespace warpmeter::ceilings::detail
