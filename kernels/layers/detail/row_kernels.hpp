#pragma once

#include <cstdint>

#include "kernels/runtime/dtype.hpp"

namespace warpmeter::layers::detail {

/// What the CPU's operations do to one contiguous row, in one storage type: fp32 arithmetic, each result rounded once.
struct RowKernels {
  void (*to_float)(const void* in, float* out, std::int64_t count);
  void (*from_float)(const float* in, void* out, std::int64_t count);

  void (*add)(const void* a, const void* b, void* out, std::int64_t count);
  void (*multiply)(const void* a, const void* b, void* out, std::int64_t count);
  void (*silu)(const void* a, void* out, std::int64_t count);
  void (*silu_backward)(const void* a, const void* d, void* out, std::int64_t count);
  void (*scale)(void* x, std::int64_t count, float factor);

  /// addend null: s = x and sum is not written. Returns inv_rms.
  float (*rmsnorm_forward)(const void* x, const void* addend, void* sum, const void* weight, void* out,
                           std::int64_t count, float epsilon);
  /// Adds d_out * s * inv_rms to d_weight (count).
  void (*rmsnorm_backward)(const void* s, const void* weight, float inv_rms, const void* d_out, const void* d_residual,
                           void* d_x, float* d_weight, std::int64_t count);
  /// One head: `table` has (cos, sin) pairs.
  void (*rope)(const float* table, const void* in, void* out, std::int64_t head_dim, bool inverse);

  void (*swiglu_forward)(const void* gate, const void* up, void* out, std::int64_t count);
  void (*swiglu_backward)(const void* gate, const void* up, const void* d_out, void* d_gate, void* d_up, void* out,
                          std::int64_t count);

  float (*log_sum_exp)(const void* x, std::int64_t count);
  void (*subtract)(const void* x, float value, float* out, std::int64_t count);  ///< out = x - value
  /// out = exp(x - lse) * scale.
  void (*scaled_softmax)(const void* x, float lse, float scale, void* out, std::int64_t count);
  /// out = exp(x) * scale, x fp32.
  void (*scaled_exp)(const float* x, float scale, void* out, std::int64_t count);

  /// sum += x.
  void (*add_to_float)(const void* x, float* sum, std::int64_t count);
  double (*square_sum)(const void* x, std::int64_t count);
};

/// AdamW's scalars of one step.
struct AdamwFactors {
  float beta1, beta2;
  float gradient_scale;
  float decay_before;  ///< w *= this first
  float step_size;     ///< w -= step_size * m / (sqrt(v) * root_scale + epsilon)
  float root_scale;
  float epsilon;
  float decay_after;  ///< w -= w * this last
};

struct MasterKernels {
  void (*adamw)(float* w, const float* g, float* m, float* v, std::int64_t count, const AdamwFactors& factors);
  void (*join)(const void* weight, const std::int16_t* correction, float* master, std::int64_t count);
  void (*split)(const float* master, void* weight, std::int16_t* correction, std::int64_t count);
};

/// For the instruction set in use; dtype fp32, bf16 or fp16.
[[nodiscard]] const RowKernels& row_kernels(DType dtype);
[[nodiscard]] const MasterKernels& master_kernels();

// The variants that row_kernels.cpp chooses from; row_kernels_isa.cpp makes them.
#define WM_ROW_KERNELS_VARIANT(isa)      \
  namespace isa {                        \
  const RowKernels* row_kernels_fp32();  \
  const RowKernels* row_kernels_bf16();  \
  const RowKernels* row_kernels_fp16();  \
  const MasterKernels* master_kernels(); \
  }
WM_ROW_KERNELS_VARIANT(generic)
WM_ROW_KERNELS_VARIANT(avx2)
WM_ROW_KERNELS_VARIANT(avx512)
#undef WM_ROW_KERNELS_VARIANT

}  // namespace warpmeter::layers::detail
