// Joins the partial results of the streams (merge.hpp has the formulas and why they are equal).
//
// A block has one query row. First the weight of every part, so that O = sum of weight x o: of a tree the product of
// the factors on its way to the root; of the LSE form exp(S_i - S) / l_i; of the two-pass form exp(m_b - M) / L. Then
// each thread has a column and adds the parts up in order.
//
// Grid: (row, key/value head, sequence).

#include <atomic>

#include "kernels/attention/cuda/decode/part_weights.cuh"
#include "kernels/runtime/cuda_check.hpp"

namespace warpmeter::attention::cuda_decode {
namespace {

__global__ void merge_kernel(const Params p) {
  extern __shared__ float shared[];
  const int parts = p.parts;
  float* const m = shared;
  float* const l = m + parts;
  float* const weight = l + parts;
  __shared__ float result_lse;
  const int row = blockIdx.x;
  const int kv_head = blockIdx.y;
  const int batch = blockIdx.z;
  const std::int64_t first = static_cast<std::int64_t>(batch * p.num_kv_heads + kv_head) * parts * p.rows + row;
  const float factor = p.scale * kLog2e;
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();  // launched while the streams run
#endif
  for (int i = threadIdx.x; i < parts; i += blockDim.x) {
    m[i] = p.part_m[first + static_cast<std::int64_t>(i) * p.rows];
    l[i] = p.part_l[first + static_cast<std::int64_t>(i) * p.rows];
    weight[i] = 1;
  }
  __syncthreads();
  if (p.merge == MergeKind::tree) {
    for (int distance = 1; distance < parts; distance *= 2) {
      // Pair i: its left end at 2 * distance * i. Every part below either end has its weight multiplied.
      for (int i = threadIdx.x; i < parts; i += blockDim.x) {
        const int left = i / (2 * distance) * (2 * distance);
        const int right = left + distance;
        if (right >= parts) continue;
        const float top = fmaxf(m[left], m[right]);
        weight[i] *= weight_of(i < right ? m[left] : m[right], top, factor);
      }
      __syncthreads();
      for (int i = threadIdx.x; i * 2 * distance + distance < parts; i += blockDim.x) {
        const int left = i * 2 * distance;
        const int right = left + distance;
        const float top = fmaxf(m[left], m[right]);
        l[left] = weight_of(m[left], top, factor) * l[left] + weight_of(m[right], top, factor) * l[right];
        m[left] = top;
      }
      __syncthreads();
    }
    const float inverse = l[0] == 0 ? 0.0f : 1 / l[0];
    for (int i = threadIdx.x; i < parts; i += blockDim.x) weight[i] *= inverse;
    if (threadIdx.x == 0) result_lse = l[0] == 0 ? kMinusInfinity : m[0] * p.scale + logf(l[0]);
  } else if (p.merge == MergeKind::lse) {
    // S and its rest in m's and weight's place.
    for (int i = threadIdx.x; i < parts; i += blockDim.x) {
      const Pair s = l[i] == 0 ? Pair{kMinusInfinity, 0} : lse_of(m[i], l[i], p.scale);
      m[i] = s.sum;
      weight[i] = s.rest;
    }
    __syncthreads();
    // Every thread for itself: the parts are few, and the order is the same for all.
    float top = kMinusInfinity;
    for (int i = 0; i < parts; ++i) top = fmaxf(top, m[i]);
    float sum = 0;
    for (int i = 0; i < parts; ++i) {
      if (m[i] != kMinusInfinity) sum += exp2f(((m[i] - top) + weight[i]) * kLog2e);
    }
    __syncthreads();
    const float inverse = 1 / sum;  // not used where nothing was seen
    for (int i = threadIdx.x; i < parts; i += blockDim.x) {
      weight[i] = m[i] == kMinusInfinity ? 0.0f : exp2f(((m[i] - top) + weight[i]) * kLog2e) * inverse / l[i];
    }
    if (threadIdx.x == 0) result_lse = sum == 0 ? kMinusInfinity : top + logf(sum);  // a NaN stays one
  } else {
    float top = kMinusInfinity;
    for (int i = 0; i < parts; ++i) top = fmaxf(top, m[i]);
    float sum = 0;
    for (int i = 0; i < parts; ++i) sum += weight_of(m[i], top, factor) * l[i];
    const float inverse = sum == 0 ? 0.0f : 1 / sum;
    for (int i = threadIdx.x; i < parts; i += blockDim.x) weight[i] = weight_of(m[i], top, factor) * inverse;
    if (threadIdx.x == 0) result_lse = sum == 0 ? kMinusInfinity : top * p.scale + logf(sum);
  }
  __syncthreads();
  const std::int64_t to = output_offset(p, batch, kv_head, row);
  for (int c = threadIdx.x; c < p.head_dim; c += blockDim.x) {
    float value = 0;
#pragma unroll 8
    for (int i = 0; i < parts; ++i) {
      value = fmaf(weight[i], p.part_o[(first + static_cast<std::int64_t>(i) * p.rows) * p.part_width + c], value);
    }
    store_element(p.o, to + c, p.query_element, value);
  }
  if (threadIdx.x == 0) p.lse[lse_offset(p, batch, kv_head, row)] = result_lse;
}

/// Whether the current device's code of merge_kernel has the wait: code for sm_80 runs on newer devices, too.
bool waits_for_streams() {
  constexpr int kDevices = 64;
  static std::atomic<int> known[kDevices];  // 0: not yet, 1: no, 2: yes
  int device = 0;
  WM_CUDA_CHECK(cudaGetDevice(&device));
  if (device >= kDevices) return false;
  if (known[device] == 0) {
    cudaFuncAttributes attributes{};
    WM_CUDA_CHECK(cudaFuncGetAttributes(&attributes, merge_kernel));
    known[device] = attributes.ptxVersion >= 90 ? 2 : 1;
  }
  return known[device] == 2;
}

}  // namespace

void launch_merge(const Params& p, void* stream) {
  cudaLaunchConfig_t config{};
  config.gridDim =
      dim3(static_cast<unsigned>(p.rows), static_cast<unsigned>(p.num_kv_heads), static_cast<unsigned>(p.batch));
  config.blockDim = dim3(static_cast<unsigned>((p.head_dim + 31) / 32 * 32));
  config.dynamicSmemBytes = static_cast<std::size_t>(p.parts) * 3 * sizeof(float);
  config.stream = static_cast<cudaStream_t>(stream);
  // Launched while the streams still run, where the code that the device runs waits for them.
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = waits_for_streams() ? 1 : 0;
  if (config.dynamicSmemBytes > 48 * 1024) {
    WM_CUDA_CHECK(cudaFuncSetAttribute(merge_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(config.dynamicSmemBytes)));
  }
  WM_CUDA_CHECK(cudaLaunchKernelEx(&config, merge_kernel, p));
}

}  // namespace warpmeter::attention::cuda_decode
