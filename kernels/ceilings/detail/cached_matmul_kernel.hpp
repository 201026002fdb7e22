#pragma once

#include <cstdint>

namespace warpmeter::ceilings::detail {

/// A product of operands that fit a core's innermost cache, by one instruction set.
struct CachedMatmulKernel {
  const char* isa;  ///< "generic", "avx2", "avx512"; for bf16 operands "avx512_bf16", "amx_bf16"
  bool is_bf16;
  std::int64_t rows, columns, depth, passes;  ///< see CachedMatmulWorkload::Tile
  double call_flops;                          ///< a thread's part of a call: some hundredths of a second or less
  /// C = passes * A B, made `times` times anew. A is (rows, depth), C is (rows, columns) in fp32, both row-major. B is
  /// (depth, columns), fp32 row-major, or bf16 in pairs of rows: ((row / 2) * columns + column) * 2 + row % 2. All on
  /// cache lines.
  void (*multiply)(const void* a, const void* b, float* c, std::int64_t times);

  [[nodiscard]] double flops() const {
    return 2.0 * static_cast<double>(rows * columns) * static_cast<double>(depth * passes);
  }
};

#define WM_DECLARE_CACHED_MATMUL(isa)            \
  namespace isa {                                \
  extern const CachedMatmulKernel kCachedMatmul; \
  }
WM_DECLARE_CACHED_MATMUL(generic)
WM_DECLARE_CACHED_MATMUL(avx2)
WM_DECLARE_CACHED_MATMUL(avx512)
WM_DECLARE_CACHED_MATMUL(avx512_bf16)
WM_DECLARE_CACHED_MATMUL(amx_bf16)
#undef WM_DECLARE_CACHED_MATMUL

}  // namespace warpmeter::ceilings::detail
