// Compiled once an instruction set: what isa_math_test.cpp looks at.
#include "tests/kernels/runtime/isa_math_probe.hpp"

#include "kernels/runtime/isa_math.hpp"

namespace warpmeter::isa_math_probe::WM_ISA {

namespace {

namespace simd = warpmeter::vec::WM_ISA;

void run(Operation operation, const float* in, float* out, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += simd::kWidth) {
    const std::int64_t lanes = count - i < simd::kWidth ? count - i : simd::kWidth;
    const simd::Vec x = simd::load_partial(in + i, lanes);
    simd::Vec y = x;
    switch (operation) {
      case Operation::exp:
        y = simd::exp(x);
        break;
      case Operation::exp2:
        y = simd::exp2(x);
        break;
      case Operation::bf16:
        y = simd::widen_bf16(simd::narrow_bf16(x));
        break;
      case Operation::fp16:
        y = simd::widen_fp16(simd::narrow_fp16(x));
        break;
      case Operation::lane_sum:
        y = simd::broadcast(simd::reduce_add(x));
        break;
      case Operation::lane_max:
        y = simd::broadcast(simd::reduce_max(x));
        break;
    }
    simd::store_partial(out + i, y, lanes);
  }
}

}  // namespace

Runner probe() {
  return run;
}
int width() {
  return simd::kWidth;
}

}  // namespace warpmeter::isa_math_probe::WM_ISA
