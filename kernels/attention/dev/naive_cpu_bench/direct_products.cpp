// Compiled once an instruction set (kernels/runtime/isa_vec.hpp says what that forbids).
#include "kernels/attention/dev/naive_cpu_bench/direct_products.hpp"

#include "kernels/attention/detail/flash_micro.hpp"

namespace warpmeter::attention::dev::WM_ISA {

namespace {

using namespace warpmeter::attention::WM_ISA;

constexpr Index kDepth = 256;  // of a block of B: 64 KiB a column panel, half of it in the first-level cache

template <ALayout layout, CMode mode>
void block(const DirectPanel& p, const float* b, Index ldb, Index k0, Index depth) {
  const float* a = layout == ALayout::row_major ? p.a + k0 : p.a + k0 * p.lda;
  multiply_rows<layout, mode>(a, p.lda, b + k0 * ldb, ldb, p.n / kWidth, p.c, p.ldc, p.m, [depth](Index, Index) {
    return Range{0, depth};
  });
}

template <ALayout layout>
void multiply_panel(const DirectPanel& p) {
  const float* b = p.b;
  Index ldb = p.ldb;
  if (p.transpose_b) {
    ldb = p.n;
    pack_transposed(p.b, p.ldb, p.n, p.n, p.k, p.scratch, ldb);
    b = p.scratch;
  }
  for (Index k0 = 0; k0 < p.k; k0 += kDepth) {
    const Index depth = min_of(kDepth, p.k - k0);
    if (k0 == 0) {
      block<layout, CMode::store>(p, b, ldb, k0, depth);
    } else {
      block<layout, CMode::add>(p, b, ldb, k0, depth);
    }
  }
}

}  // namespace

void direct_product(const DirectPanel& panel) {
  if (panel.transpose_a) {
    multiply_panel<ALayout::column_major>(panel);
  } else {
    multiply_panel<ALayout::row_major>(panel);
  }
}

}  // namespace warpmeter::attention::dev::WM_ISA
