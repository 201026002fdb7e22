#pragma once

#include <cstdint>

namespace warpmeter::attention::dev {

/// One panel of a product, c (m x n) = op(a) op(b), fp32; n is a multiple of 16.
struct DirectPanel {
  bool transpose_a, transpose_b;
  std::int64_t m, n, k;
  const float* a;
  std::int64_t lda;
  const float* b;
  std::int64_t ldb;
  float* c;
  std::int64_t ldc;
  float* scratch;  ///< n * k floats where transpose_b
};

/// By flash's register blocks, which read A and a B of rows as they lie and pack nothing; B^T, where it is needed, is
/// written once a panel.
#define WM_DIRECT_PRODUCTS(isa)                  \
  namespace isa {                                \
  void direct_product(const DirectPanel& panel); \
  }
WM_DIRECT_PRODUCTS(generic)
WM_DIRECT_PRODUCTS(avx2)
WM_DIRECT_PRODUCTS(avx512)
#undef WM_DIRECT_PRODUCTS

}  // namespace warpmeter::attention::dev
